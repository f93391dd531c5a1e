"""Define the one interface of forecasters: fit and tune on packets, predict packets, save, load, export.

A forecaster gets a sender's packet table and decisions of 8 packets each, and makes events, queries or
windows itself. Any two can therefore be compared on the same packets with the same knowledge, and any can be
trained, judged and registered.

A kind is found by its name: a folder of `models/` with a file `forecaster.py` that names its kinds in
`FORECASTERS`. `architecture.name` in params.yaml chooses the kind of the loop, with its sizes in the section
of that name, or `auto`, and then the stage `pretrain` chooses (selection.py). `forecasters.yaml` holds a
section for each variant that is compared.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

import hashlib
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self

from pydantic import AfterValidator, Field

from swiftqueue import models
from swiftqueue.common.atomic import new_folder
from swiftqueue.common.json_file import read_object
from swiftqueue.common.section import Count, Section, near, read, read_all
from swiftqueue.feature_store.events.event_stream import AS_SENT
from swiftqueue.models.forecasters.search import Space

if TYPE_CHECKING:
    from swiftqueue.models.forecasters.spread import Spread
    from swiftqueue.models.forecasters.traces import Floats, TracePart
    from swiftqueue.models.networks.parameters import Level
    from swiftqueue.models.sharp import Change
    from swiftqueue.models.training.head import FinetuneParams, TuningReport

FORMAT: Final = "swiftqueue-forecaster/2"
DESCRIPTION_FILE: Final = "forecaster.json"
KINDS: Final = "models/*/forecaster.py"  # import_closure.py follows it
AUTO: Final = "auto"  # name of no kind: the stage `pretrain` chooses among section `auto`'s candidates

Say = Callable[[str], None]


class Forecaster(ABC):
    """The base class of forecasters. Instances do not change; `tuned` returns another one."""

    Params: ClassVar[type[Section]]
    seeded: ClassVar[bool] = True  # False: every training seed gives the same forecaster
    search: ClassVar[Space] = {}  # training parameters that a search may change
    tuning: TuningReport | None = None  # report of the tuning that made its head, if any

    @classmethod
    @abstractmethod
    def fit(cls, parts: Sequence[TracePart], params: Any, seed: int, say: Say) -> Self:
        """Train on parts that came from `to_learn`.

        Raises:
            ValueError: there are no training data, or training diverged.
        """

    @classmethod
    def course(cls) -> Any:
        """Return the class that trains it in a job (models/training/query_training.py); None: `fit` does."""
        return None

    @abstractmethod
    def encode(self, part: TracePart, queue: int = AS_SENT) -> Any:
        """Return `answer`'s input for a part's decisions, all that tuning leaves unchanged.

        Each forecaster tuned from this one can answer decisions that this one encoded.

        Args:
            part: the decisions and their sender's log.
            queue: queue of the packets: 0 classic, 1 l4s, or -1 for the one that each was sent in.
        """

    @abstractmethod
    def answer(self, encoded: Any) -> Floats:
        """Return latencies in µs (B, H) of encoded decisions."""

    def spread(self, encoded: Any) -> Spread | None:
        """Return quantiles of the latencies, whose median `answer` gives; None without quantiles."""
        return None

    def predict(self, part: TracePart, queue: int = AS_SENT) -> Floats:
        """Return latencies in µs (B, H), each from its sender's knowledge at the decision."""
        return self.answer(self.encode(part, queue))

    def tuned(self, part: TracePart, how: FinetuneParams) -> Self:
        """Return a forecaster whose head is tuned on a part that came from `to_learn`.

        Raises:
            ValueError: tuning diverged.
        """
        return self.tuned_on(self.encode(part), part.latencies_us(), part.change, how)

    def tuned_on(
        self, encoded: Any, came_BH: Floats, change: Change, how: FinetuneParams, starts: Sequence[int] = ()
    ) -> Self:
        """Return a forecaster whose head is tuned on encoded decisions; itself if there is nothing to tune.

        Args:
            encoded: decisions encoded by it, or by the forecaster that it was tuned from.
            came_BH: latencies in µs; NaN where unknown.
            change: least change of latency that the loss weights.
            how: parameters of the tuning.
            starts: decisions with which another stretch of time begins.
        """
        return self

    def same_but_head(self, other: Forecaster) -> bool:
        """Return whether each can answer what the other encoded."""
        return type(self) is type(other)

    def multiply_adds(self) -> int:
        """Return the multiply-adds of a batch: 8 SENDs, 8 ACKs, and 8 packets in both queues; 0 for trees."""
        return 0

    @abstractmethod
    def write(self, folder: Path) -> dict[str, Any]:
        """Write its files into an empty folder; return the rest of `read`'s input as plain JSON."""

    @classmethod
    @abstractmethod
    def read(cls, folder: Path, described: Mapping[str, Any]) -> Self:
        """Read a forecaster that `write` wrote.

        Raises:
            ValueError: the files do not fit together; the line says why.
        """

    def export(self, folder: Path, level: Level = None) -> None:
        """Write the served part, an artifact, into an existing folder.

        Args:
            folder: folder of the artifact.
            level: level of the served quantile, or `all`; None: the median.

        Raises:
            ValueError: it cannot be served; the line says why.
        """
        served = ", ".join(sorted(name for name, kind in kinds().items() if is_served(kind)))
        raise ValueError(
            f"{name_of_kind(type(self))} has no form that Triton serves; architecture.name, or "
            f"{AUTO}.candidates, must name one of {served}"
        )


@dataclass(frozen=True)
class Variant:
    """A kind of forecaster with its parameters."""

    name: str  # name of the section
    kind: type[Forecaster]
    params: Section

    @property
    def kind_name(self) -> str:
        """Return the name of the kind."""
        return name_of_kind(self.kind)

    def fit(self, parts: Sequence[TracePart], seed: int, say: Say = lambda _: None) -> Forecaster:
        """Train the variant; raises as `Forecaster.fit`."""
        return self.kind.fit(parts, self.params, seed, say)


def kinds() -> dict[str, type[Forecaster]]:
    """Return all kinds of forecasters by name."""
    found: dict[str, type[Forecaster]] = {}
    for place in models.__path__:
        for path in sorted(Path(place).parent.glob(KINDS)):
            module = importlib.import_module(f"swiftqueue.models.{path.parent.name}.forecaster")
            found |= getattr(module, "FORECASTERS", {})
    return found


def name_of_kind(kind: type[Forecaster]) -> str:
    """Return the name of a kind."""
    return next(name for name, each in kinds().items() if each is kind)


def kind_named(name: str) -> type[Forecaster]:
    """Return a kind of forecaster.

    Raises:
        ValueError: there is no kind of that name.
    """
    known = kinds()
    if name not in known:
        raise ValueError(f"there is no forecaster {name!r}; {near(name, list(known))}")
    return known[name]


def is_served(kind: type[Forecaster]) -> bool:
    """Return whether Triton serves forecasters of a kind."""
    return kind.export is not Forecaster.export


def _names() -> list[str]:
    return sorted([AUTO, *kinds()])


def _known(name: str) -> str:
    if name not in (known := _names()):
        raise ValueError(f"it must be one of {', '.join(known)}")
    return name


def _say_names(schema: dict[str, Any]) -> None:
    schema["enum"] = _names()


class ArchitectureParams(Section):
    """The choice of the loop's forecaster, which is trained, judged, registered, served and tuned live."""

    section: ClassVar = "architecture"
    name: Annotated[str, AfterValidator(_known), Field(json_schema_extra=_say_names)]
    """Kind of the forecaster, whose sizes are in the section of that name; or `auto`, which chooses one of
    section `auto` on the training slices (docs/FORECASTERS.md)."""


def _candidates(names: list[str]) -> list[str]:
    if not names or len(set(names)) < len(names):
        raise ValueError("it must name forecasters, each once")
    for name in names:
        kind_of_candidate(name)
    return names


class AutoParams(Section):
    """The choice of a forecaster where `architecture.name` is `auto`."""

    section: ClassVar = AUTO
    candidates: Annotated[list[str], AfterValidator(_candidates)]
    """Forecasters to choose from, each with the sizes of its section; `NAME-2` has two layers, whatever its
    section says. Of equals the first is chosen."""
    steps: Annotated[int, Field(ge=1, le=10)]
    """Number of walk-forward steps within the training slices; each costs a training of every candidate."""
    workers: Count = 2
    """Number of candidates that train at once, one core each."""


def kind_of_candidate(name: str) -> tuple[str, dict[str, int]]:
    """Return the kind that a candidate of section `auto` names, and the sizes that its name sets.

    Raises:
        ValueError: there is no such kind, or it has no layers.
    """
    kind, _, layers = name.rpartition("-")
    if name in kinds() or not layers.isdecimal():
        kind_named(name)
        return name, {}
    if "layers" not in kind_named(kind).Params.model_fields:
        raise ValueError(f"{name}: {kind} has no layers")
    return kind, {"layers": int(layers)}


def candidates(params: Path) -> list[Variant]:
    """Return the forecasters that a parameter file lets the loop choose from: one, unless it says `auto`.

    Raises:
        ValueError: the file names none or an unknown one, or sizes are invalid.
    """
    name = read(params, ArchitectureParams).name
    found = []
    for each in read(params, AutoParams).candidates if name == AUTO else [name]:
        kind_name, sizes = kind_of_candidate(each)
        kind = kind_named(kind_name)
        own = read(params, kind.Params)
        found.append(Variant(each, kind, kind.Params(**own.model_dump() | sizes) if sizes else own))
    return found


def sections_of_choice(params: Mapping[str, Any]) -> list[str]:
    """Return the sections of a parameter file that choose the forecaster and its sizes."""
    choice = (params.get(ArchitectureParams.section) or {}).get("name")
    among = (params.get(AUTO) or {}).get("candidates") or [] if choice == AUTO else []
    names = (ArchitectureParams.section, choice, *(kind_of_candidate(str(each))[0] for each in among))
    return [str(name) for name in dict.fromkeys(names) if name in params]


def variants(path: Path, wanted: Sequence[str] = ()) -> list[Variant]:
    """Read all sections, or those wanted, of a file of variants, in the file's order.

    Raises:
        ValueError: the file or a section is missing, or a name or size is invalid; the line names it.
    """
    sections = read_all(path)
    if missing := [name for name in wanted if name not in sections]:
        raise ValueError(f"{path}: section `{missing[0]}` is missing; {near(missing[0], list(sections))}")
    chosen = {name: values for name, values in sections.items() if not wanted or name in wanted}
    return [_variant(path, str(name), values) for name, values in chosen.items()]


def _variant(path: Path, name: str, values: Any) -> Variant:
    if not isinstance(values, dict) or not isinstance(values.get("name"), str):
        raise ValueError(f"{path}: section `{name}` must have a `name`, that of a forecaster")
    try:
        kind = kind_named(values["name"])
        return Variant(name, kind, kind.Params(**{str(k): v for k, v in values.items() if k != "name"}))
    except ValueError as error:
        raise ValueError(f"{path}: section `{name}`: {error}") from None


def save(folder: Path, forecaster: Forecaster, **about: Any) -> None:
    """Write a fitted forecaster; `folder` appears or changes only once it is complete.

    A description beside its files has a digest of each, and `about` as plain JSON.
    """
    with new_folder(folder) as partial:
        write(partial, forecaster, **about)


def write(folder: Path, forecaster: Forecaster, **about: Any) -> None:
    """Write a fitted forecaster into an empty folder; the arguments are those of `save`."""
    described = forecaster.write(folder)
    content = {
        "format": FORMAT,
        "name": name_of_kind(type(forecaster)),
        **about,
        **described,
        "files": {path.name: _digest(path) for path in sorted(folder.iterdir())},
    }
    (folder / DESCRIPTION_FILE).write_text(json.dumps(content, indent=1) + "\n")


def _check_files(folder: Path, digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name}: no such file; the folder is incomplete")
        if _digest(folder / name) != digest:
            raise ValueError(f"{name} has changed since it was written; fit the forecaster again")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_made_for(described: Mapping[str, Any], schema_hash: str) -> None:
    """Raise a ValueError of one line if a saved model has inputs of another definition."""
    if described["schema_hash"] != schema_hash:
        raise ValueError(
            f"made for inputs {described['schema_hash']}, but this code computes {schema_hash}; train again"
        )


def load(folder: Path) -> Forecaster:
    """Read a saved forecaster, or the artifact of a network from the registry.

    No library reads a file with a wrong digest: XGBoost's reader may end the process on a truncated file.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or of another format, name, size or definition of inputs; the line says
            which.
    """
    path = folder / DESCRIPTION_FILE
    if not path.is_file():
        return _load_artifact(folder)
    described = read_object(path)
    if described.get("format") != FORMAT:
        raise ValueError(f"{path}: format {described.get('format')!r} is not {FORMAT!r}; fit it again")
    try:
        _check_files(folder, described["files"])
        return kind_named(str(described["name"])).read(folder, described)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: malformed ({type(error).__name__}: {error})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _load_artifact(folder: Path) -> Forecaster:
    from swiftqueue.models.networks import artifact, files

    if not (folder / files.DESCRIPTION_FILE).is_file():
        raise FileNotFoundError(f"{folder / DESCRIPTION_FILE}: no such file; not a forecaster, or incomplete")
    name = artifact.architecture_in(folder)
    return kind_named(name).read(folder, {})
