"""The one door: fit on packets, tune on packets, predict packets, save, load; whatever is behind it.

A forecaster is handed a sender's packet table and decisions of 8 packets each, never windows or events: those
are its own affair. So any two can be compared, on the same packets with the same knowledge. What it may learn
from is cut before it is handed over, so that nothing later can leak into it.

`forecasters.yaml` holds a section for each variant: its `name`, which is that of a class in this folder or in
`forecaster.py` of a folder beside it, and the sizes that the class takes.

Shapes: B decisions, H horizon (8 packets), N packets.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feature_store.atomic import new_folder
from feature_store.events.event_stream import AS_SENT
from feature_store.packets.schema import HORIZON
from feature_store.packets.truth import Waits
from models.forecasters.spread import Spread
from models.json_file import read_object
from models.search import Space
from models.section import Section, near, read_all
from models.sharp import PAPERS, Change
from models.training.examples import VALIDATION_SHARE
from models.training.protocol import Slice, Slices

FORMAT: Final = "swiftqueue-forecaster/1"
DESCRIPTION_FILE: Final = "forecaster.json"

Floats = NDArray[np.float32]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """Some decisions of a trace, with the sender's log behind them.

    Decision k is about the packets 8k … 8k + 7 and is taken when the first of them is sent.
    """

    trace: str
    packets: pl.DataFrame  # the trace's packet table from its first packet on, in send order
    decisions: Slice
    visibility: str = "acked"  # of earlier latencies at a decision: `previous`: all (docs/EVALUATION.md)
    told: str = "all"  # of packets 2 to 8 of a batch at its decision (`replay_events`)
    change: Change = PAPERS  # of latency that the loss weights and the scores count

    def __len__(self) -> int:
        return len(self.decisions)

    @property
    def first_packets(self) -> NDArray[np.int64]:
        """First packet of each decision, (B,)."""
        return np.arange(self.decisions.lo, self.decisions.hi, dtype=np.int64) * HORIZON

    def latencies_us(self, phase: int = 0) -> Floats:
        """What became of the packets decided, (B, H) in µs; NaN where unknown.

        With a `phase`, of decisions that many packets later, as far as the table goes.
        """
        end = min(self.decisions.hi * HORIZON + phase, self.packets.height)
        decided = self.packets[self.decisions.lo * HORIZON + phase : end]
        latency_N = decided["latency_us"].cast(pl.Float32).fill_null(float("nan")).to_numpy()
        return latency_N[: len(latency_N) // HORIZON * HORIZON].reshape(-1, HORIZON)

    def to_learn(self) -> Part:
        """Give what was known when the part ended: no later packet, no latency acknowledged later."""
        end = self.decisions.hi * HORIZON
        if end >= self.packets.height:  # all that there is
            return self
        known = pl.col("acked_ns") <= int(self.packets["sent_ns"][end])
        packets = self.packets.head(end).with_columns(
            acked_ns=pl.when(known).then("acked_ns"), latency_us=pl.when(known).then("latency_us")
        )
        return replace(self, packets=packets)

    def held_out(self, share: float = VALIDATION_SHARE) -> tuple[Part, Part]:
        """Divide it by time: what to learn from, as known when that ends, and the last `share`."""
        lo, hi = self.decisions.lo, self.decisions.hi
        middle = hi - max(1, round((hi - lo) * share))
        earlier = replace(self, decisions=Slice(lo, middle)).to_learn()
        return earlier, replace(self, decisions=Slice(middle, hi))


@dataclass(frozen=True)
class Trace:
    """A packet table divided by time."""

    name: str
    packets: pl.DataFrame
    slices: Slices
    visibility: str = "acked"
    told: str = "all"
    waits: Waits | None = None  # where they are known
    change: Change = PAPERS
    explored: float | None = None  # share of L4S flows' packets that were sent as classic at random

    def to_learn(self, part: Slice) -> Part:
        """Give a slice to learn from, as it was known when it ended."""
        return self.to_predict(part).to_learn()

    def to_predict(self, part: Slice) -> Part:
        """Give a slice to predict."""
        return Part(self.name, self.packets, part, self.visibility, self.told, self.change)


def decision_times(packets: pl.DataFrame) -> NDArray[np.int64]:
    """When the batches of 8 of a packet table are decided, (B,); an incomplete last one is not."""
    decided = packets.height // HORIZON * HORIZON
    return packets["sent_ns"].to_numpy()[:decided:HORIZON]


class Forecaster(ABC):
    """What every forecaster can do. Instances do not change; `tuned` gives another one."""

    Params: ClassVar[type[Section]]
    seeded: ClassVar[bool] = True  # False: every training seed gives the same one
    search: ClassVar[Space] = {}  # how it is trained; its inputs, form and size make the variant

    @classmethod
    @abstractmethod
    def fit(cls, parts: Sequence[Part], params: Any, seed: int, say: Say) -> Self:
        """Train on parts that were given `to_learn`.

        Raises:
            ValueError: there is nothing to learn from, or training diverged.
        """

    def tuned(self, part: Part) -> Self:
        """Give one whose head is tuned on a part given `to_learn`; itself where there is nothing to tune."""
        return self

    @abstractmethod
    def predict(self, part: Part, queue: int = AS_SENT) -> Floats:
        """Latencies in µs (B, H), each from what its sender knew at the decision.

        `queue` is the packets' own: 0 classic, 1 l4s, or -1, the one that each was sent in.
        """

    def spread(self, part: Part, queue: int = AS_SENT) -> Spread | None:
        """Quantiles of the latencies that `predict` gives the median of; None where it has none."""
        return None

    @abstractmethod
    def multiply_adds(self) -> int:
        """Multiplications and additions of a batch: 8 SENDs, 8 ACKs, and 8 packets in both queues."""

    @abstractmethod
    def write(self, folder: Path) -> dict[str, Any]:
        """Write weights into an empty folder; return what `read` needs beside them, as plain JSON."""

    @classmethod
    @abstractmethod
    def read(cls, folder: Path, params: Any, described: Mapping[str, Any]) -> Self:
        """Read what `write` wrote.

        Raises:
            ValueError: it does not fit together; the line says what.
        """


@dataclass(frozen=True)
class Variant:
    """A forecaster with its sizes: a section of `forecasters.yaml`."""

    name: str  # of the section
    kind: type[Forecaster]
    params: Section

    @property
    def kind_name(self) -> str:
        """Name of its class in `FORECASTERS`."""
        return next(name for name, kind in kinds().items() if kind is self.kind)

    def fit(self, parts: Sequence[Part], seed: int, say: Say = lambda _: None) -> Forecaster:
        """Train it; raises as `Forecaster.fit`."""
        return self.kind.fit(parts, self.params, seed, say)


def kinds() -> dict[str, type[Forecaster]]:
    """Forecasters by name: `FORECASTERS` of files of this folder, and of each `forecaster.py` beside it."""
    here = Path(__file__).parent
    names = [f"models.forecasters.{module.name}" for module in pkgutil.iter_modules([str(here)])]
    beside = sorted(path.parent.name for path in here.parent.glob("*/forecaster.py") if path.parent != here)
    names += [f"models.{folder}.forecaster" for folder in beside]
    found: dict[str, type[Forecaster]] = {}
    for name in names:
        found |= getattr(importlib.import_module(name), "FORECASTERS", {})
    return found


def kind_named(name: str) -> type[Forecaster]:
    """Return a forecaster's class.

    Raises:
        ValueError: there is none of that name.
    """
    known = kinds()
    if name not in known:
        raise ValueError(f"there is no forecaster {name!r}; {near(name, list(known))}")
    return known[name]


def variants(path: Path, wanted: Sequence[str] = ()) -> list[Variant]:
    """Read the sections of a file, or those wanted, in the file's order.

    Raises:
        ValueError: the file or a section is missing, or a name or size cannot be; the line names it.
    """
    sections = read_all(path)
    if missing := [name for name in wanted if name not in sections]:
        raise ValueError(f"{path}: section `{missing[0]}` is missing; {near(missing[0], list(sections))}")
    return [_variant(path, str(name), values) for name, values in _some(sections, wanted)]


def _some(sections: dict[str, Any], wanted: Sequence[str]) -> Iterator[tuple[str, Any]]:
    return ((name, values) for name, values in sections.items() if not wanted or name in wanted)


def _variant(path: Path, name: str, values: Any) -> Variant:
    if not isinstance(values, dict) or not isinstance(values.get("name"), str):
        raise ValueError(f"{path}: section `{name}` must have a `name`, that of a forecaster")
    try:
        kind = kind_named(values["name"])
        return Variant(name, kind, kind.Params(**{str(k): v for k, v in values.items() if k != "name"}))
    except ValueError as error:
        raise ValueError(f"{path}: section `{name}`: {error}") from None


def save(folder: Path, variant: Variant, forecaster: Forecaster, **about: Any) -> None:
    """Write a fitted forecaster; `folder` appears, or changes, only once everything in it is written.

    What it is `about`, plain JSON, stands beside it in its description; so does a digest of each file.
    """
    with new_folder(folder) as partial:
        described = forecaster.write(partial)
        content = {
            "format": FORMAT,
            "name": variant.kind_name,
            "params": variant.params.model_dump(),
            **about,
            **described,
            "files": {path.name: _digest(path) for path in sorted(partial.iterdir())},
        }
        (partial / DESCRIPTION_FILE).write_text(json.dumps(content, indent=1) + "\n")


def _check_files(folder: Path, digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name}: no such file; what is there is incomplete")
        if _digest(folder / name) != digest:
            raise ValueError(f"{name} is not what was written; fit the forecaster again")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_made_for(described: Mapping[str, Any], schema_hash: str) -> None:
    """Raise a ValueError of one line where something saved has inputs of another definition."""
    if described["schema_hash"] != schema_hash:
        raise ValueError(
            f"made for inputs {described['schema_hash']}, but this code computes {schema_hash}; train again"
        )


def load(folder: Path) -> Forecaster:
    """Read a saved forecaster.

    No library reads a file whose digest is another: XGBoost's reader may end the process on what was cut.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: it is damaged, of another format, name, size or definition of inputs; the line says what.
    """
    path = folder / DESCRIPTION_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; not a forecaster, or incomplete")
    described = read_object(path)
    if described.get("format") != FORMAT:
        raise ValueError(f"{path}: format {described.get('format')!r} is not {FORMAT!r}")
    try:
        _check_files(folder, described["files"])
        kind = kind_named(str(described["name"]))
        return kind.read(folder, kind.Params(**described["params"]), described)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: malformed ({type(error).__name__}: {error})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
