"""A model's card: its network, the data that taught it, its scores, and what it descends from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from swiftqueue.models.registry.registry import Registry

# Tags of a version that say where it came from, in the order of the card.
LINEAGE: Final = (
    *("source", "protocol", "visibility", "git_commit", "parent_version", "reference_version"),
    *("replaced_version", "gate", "gate_reason", "gate_champion", "schema_hash", "content_sha256"),
)
TRAINING: Final = ("seed", "epochs", "rounds")  # parameters of a section that the card repeats
ABOUT_SCORES: Final = (
    "`gate.WHO.FIGURE` is of the packets that judged this version when it was registered. WHO is "
    "`challenger` (this version), `champion` (the one served then), `reference` (with which the champion's "
    "encoder came), or `last_` for a repeated latency. The other scores are of all test slices."
)
DVC: Final = "dvc."  # prefix of the tags that hold the DVC hash of an input


@dataclass(frozen=True)
class ModelCard:
    """A description of one model; `str()` gives it as Markdown."""

    title: str
    network: dict[str, Any]
    """Architecture, sizes, number of inputs, window or band, and units of the answer."""
    data: list[dict[str, Any]] = field(default_factory=list)
    """Data sets: `name`, `source` (path in the project), `digest` (DVC's hash) and `use`."""
    scores: dict[str, float] = field(default_factory=dict)
    """Figures of the run that made it, by name; those of the gate and of the live rounds among them."""
    lineage: dict[str, str] = field(default_factory=dict)
    """Commit, parent version, data hashes, and the gate's decision with its reason."""
    training: dict[str, str] = field(default_factory=dict)
    """Seeds and epochs of the run that made it, as `section.key`."""

    @classmethod
    def of_folder(cls, folder: Path) -> ModelCard:
        """Return the card of an artifact's folder, which knows neither scores nor data sets.

        Raises:
            ValueError: the folder's description is damaged.
        """
        return cls(f"Model in {folder}", _network(folder), lineage=_own_lineage(folder))

    @classmethod
    def of_version(cls, versions: Registry, version: int, folder: Path) -> ModelCard:
        """Return the card of a registered version, whose files are in `folder`.

        Raises:
            OSError: the registry does not answer.
        """
        from swiftqueue.models.registry.store import clear_errors, connect

        tags = versions.tags(version)
        with clear_errors(f"run of version {version}"):
            client = connect()
            run = client.get_run(client.get_model_version(versions.model, str(version)).run_id)
        data = [
            {
                "name": one.dataset.name,
                "source": _path(one.dataset.source),
                "digest": one.dataset.digest,
                "use": ", ".join(tag.value for tag in one.tags),
            }
            for one in run.inputs.dataset_inputs
        ]
        told = [name for name in LINEAGE if name in tags] + sorted(n for n in tags if n.startswith(DVC))
        aliases = [alias for alias, number in versions.aliases().items() if number == version]
        named = f" ({', '.join(aliases)})" if aliases else ""
        return cls(
            f"{versions.model}, version {version}{named}",
            _network(folder),
            sorted(data, key=lambda one: (one["use"], one["name"])),
            dict(sorted(run.data.metrics.items())),
            {name: tags[name] for name in told},
            {n: value for n, value in sorted(run.data.params.items()) if n.rpartition(".")[2] in TRAINING},
        )

    def __str__(self) -> str:
        """Return the card as Markdown."""
        lines = [f"# {self.title}"]
        lines += _table("Network", self.network)
        lines += ["", "## Data", ""]
        if self.data:
            lines += ["| name | use | source | digest |", "|---|---|---|---|"]
            lines += ["| {name} | {use} | {source} | {digest} |".format_map(one) for one in self.data]
        else:
            lines += ["Nothing is known of the data: a registered version names its data sets."]
        if self.training:
            lines += _table("Training", self.training)
        gate = any(name.startswith("gate.") for name in self.scores)
        lines += _table(
            "Scores", {n: _shown(figure) for n, figure in self.scores.items()}, ABOUT_SCORES if gate else ""
        )
        lines += _table("Lineage", self.lineage)
        return "\n".join([*lines, ""])

    def _repr_markdown_(self) -> str:
        """Return what a notebook shows."""
        return str(self)


def _shown(figure: float) -> str:
    """Return a figure of four digits, or all of a number's digits before the point."""
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.4g}"


def _table(title: str, rows: Mapping[str, Any], about: str = "") -> list[str]:
    """Return a section with a row for each entry, or a line that there is none, after a line about them."""
    body = [f"| {name} | {value} |" for name, value in rows.items()]
    return [
        "",
        f"## {title}",
        "",
        *([about, ""] if about else []),
        *(["| | |", "|---|---|", *body] if body else ["None are recorded."]),
    ]


def _network(folder: Path) -> dict[str, Any]:
    """Return the figures of a model's description that a reader asks for first."""
    from swiftqueue.models.registry.packet_model import read_model

    described = read_model(folder).description
    lists = ("features", "queries")
    counts = {
        f"number of {name}": len(described[name]) for name in lists if isinstance(described.get(name), list)
    }
    plain = {
        n: value
        for n, value in described.items()
        if isinstance(value, str | int | float) and n not in LINEAGE
    }
    sizes = described.get("architecture")
    return plain | counts | (dict(sizes) if isinstance(sizes, Mapping) else {})


def _own_lineage(folder: Path) -> dict[str, str]:
    """Return what an artifact itself says of its origin."""
    from swiftqueue.models.registry.packet_model import read_model

    described = read_model(folder).description
    told = {name: described[name] for name in ("schema_hash", "protocol", "visibility") if name in described}
    return {
        name: ", ".join(f"{key} {value[key]}" for key in value) if isinstance(value, Mapping) else str(value)
        for name, value in told.items()
    }


def _path(source: str) -> str:
    """Return the path of a data set's source, which MLflow keeps as JSON."""
    import json

    try:
        found = json.loads(source)
    except ValueError:
        return source
    return str(found.get("uri", source)) if isinstance(found, dict) else source
