"""What a network says of itself so that the whole loop can have it, and how it is found by its name.

A file of `models/loop/` holds one, as `NETWORK`; its name, with hyphens, is what `architecture.name` takes in
params.yaml. Only the file that is asked for is imported. Where it brings PyTorch when it trains or builds, as
`window` and those over events do, to read sizes is quick.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field

from feature_store.events.definition import Definition
from models.section import Section, read, read_all
from models.sharp import Change

if TYPE_CHECKING:
    from models.networks.scaling import ScaledFeature, Target
    from models.networks.window_network import WindowNetwork

# Of `models/`. Who reads sizes depends on its files (import_closure.py), not on what they import.
FOLDER: Final = "loop/"
DEFAULT: Final = "window"  # what a parameter file of before there was a choice means


@dataclass(frozen=True)
class Data:
    """Where the stages' files lie that a network learns from."""

    packets: Path  # packet tables by trace
    windows: Path
    split: Path
    state: Path  # for what is kept of unfinished work
    change: Change  # of latency that the loss weights


@dataclass(frozen=True)
class Pretrained:
    """What pre-training gives: the model of the best epoch and the record of every epoch."""

    model: WindowNetwork
    epochs: list[dict[str, Any]]
    checkpoints: Path | None = None  # folder of a Ray Train job, to be discarded once the model is saved


class LoopNetwork(ABC):
    """A network of the loop."""

    stored: ClassVar[str]  # its name in model.json
    definition: ClassVar[Definition]  # of the rows of its windows
    row_keys: ClassVar[tuple[str, ...]] = ()  # parameters of its section that decide how many rows
    scalings: ClassVar[tuple[str, ...]] = ()  # what its model.json has besides `features`
    several: ClassVar[bool] = False  # whether it can be served with several quantiles of each latency

    @property
    def name(self) -> str:
        """What `architecture.name` takes."""
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    @abstractmethod
    def params(self) -> type[Section]:
        """Class of its section of params.yaml: sizes, and how it is trained."""

    @abstractmethod
    def sizes(self) -> type[Any]:
        """Dataclass of what `architecture` in model.json holds, without the name."""

    @abstractmethod
    def network(self) -> type[WindowNetwork]:
        """Class of the network, whose `sizes` are such an object."""

    def tokens(self, params: Path) -> int | None:
        """Rows of a window by its section of a parameter file; None: section `windows` says."""
        return None

    @abstractmethod
    def how(self, params: Any) -> str:
        """Say in a few words how it is trained."""

    @abstractmethod
    def pretrain(
        self,
        data: Data,
        params: Any,
        say: Callable[[str], None],
        epoch: Callable[[dict[str, Any]], None],
    ) -> Pretrained:
        """Train it whole, on the pre-training slices of all traces.

        Args:
            data: of the stages `extract`, `windows` and `split`.
            params: its section.
            say: told a line, now and then.
            epoch: told the record of an epoch, where it can be told at once.

        Raises:
            ValueError: the windows are others than its own, or cannot be trained on; or training diverged.
        """

    def build(
        self,
        features: Sequence[ScaledFeature],
        target: Target,
        sizes: Mapping[str, Any],
        window: Mapping[str, int],
        scalings: Mapping[str, Sequence[ScaledFeature]],
        levels: Sequence[float] = (),
    ) -> WindowNetwork:
        """Make a network of the form that a model.json describes; `levels` of quantiles, where `several`.

        Raises:
            ValueError: that form is not possible; the line says why.
        """
        kind: Any = self.network()
        return kind(features, target, self.sizes()(**sizes, horizon=window["horizon"]))  # type: ignore[no-any-return]


def names() -> list[str]:
    """Which networks the loop can have."""
    found = pkgutil.iter_modules(importlib.import_module(f"models.{FOLDER.strip('/')}").__path__)
    return sorted(module.name.replace("_", "-") for module in found)


def named(name: str) -> LoopNetwork:
    """Return the network of a name that `architecture.name` takes.

    Raises:
        ValueError: there is none.
    """
    if name not in names():
        raise ValueError(f"there is no network {name!r} (known: {', '.join(names())})")
    module = importlib.import_module(f"models.{FOLDER.strip('/')}.{name.replace('-', '_')}")
    network: LoopNetwork = module.NETWORK
    return network


def chosen(params: Path) -> LoopNetwork:
    """Return the network that a parameter file chooses.

    Raises:
        ValueError: it names none, or an unknown one.
    """
    if ArchitectureParams.section not in read_all(params):
        return named(DEFAULT)
    return named(read(params, ArchitectureParams).name)


def sections(params: Mapping[str, Any]) -> list[str]:
    """Return those of a parameter file's sections that say which network it chooses, and its sizes.

    Raises:
        ValueError: it names an unknown one.
    """
    choice = params.get(ArchitectureParams.section) or {}
    own = named(choice.get("name", DEFAULT)).params().section
    return [name for name in (ArchitectureParams.section, own) if name in params]


def _known(name: str) -> str:
    if name not in names():
        raise ValueError(f"it must be one of {', '.join(names())}")
    return name


def _say_names(schema: dict[str, Any]) -> None:
    schema["enum"] = names()


class ArchitectureParams(Section):
    """The predictor of the loop: trained, judged, registered, served, and tuned in live rounds."""

    section: ClassVar = "architecture"
    name: Annotated[str, AfterValidator(_known), Field(json_schema_extra=_say_names)]
    """`window` has its sizes in section `pretrain`, any other in the section of its name."""
