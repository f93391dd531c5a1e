"""Stage `rate_train`: the networks that forecast rates, one of each kind for each seed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from swiftqueue.common.import_closure import code_hash
from swiftqueue.common.section import Above0, Count, Section, read
from swiftqueue.pipelines.stage import Given, run_stage
from swiftqueue.studies.rate.samples.definition import HORIZONS, PREFIXES

Seed = Annotated[int, Field(ge=1, le=2**31)]


def _distinct(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("a seed stands there twice, which makes the same network")
    return seeds


def _of_the_grid(pairs: list[list[int]]) -> list[list[int]]:
    for n, k in pairs:
        if n not in PREFIXES or k not in HORIZONS:
            raise ValueError(f"[{n}, {k}] is no pair of {list(PREFIXES)} and {list(HORIZONS)}")
    return pairs


class RateTrainParams(Section):
    """How the networks that forecast rates are trained (README.md)."""

    section: ClassVar = "rate_train"
    seeds: Annotated[list[Seed], Field(min_length=1), AfterValidator(_distinct)]
    """A network of each kind for each; a seed divides the flows, too."""
    epochs: Count
    """How often all flows are seen."""
    batch_size: Count
    """Number of flows of a step."""
    lstm_units: Count
    """Number of cells of the paper's LSTM."""
    width: Count
    """Width of the Transformer, which the number of heads must divide."""
    layers: Count
    """Number of the Transformer's layers."""
    heads: Count
    """Number of the Transformer's attention heads."""
    dropout: Annotated[float, Field(ge=0, lt=1)]
    """Share of units that both networks drop in training."""
    fields: list[str]
    """Names of the fields that the networks' layers see; none: all. Our guesses take those they need."""
    learning_rate: Above0
    """The Transformer's highest; the LSTM has the paper's steps from 0.01 to 0.00001."""
    pairs: Annotated[
        list[Annotated[list[int], Field(min_length=2, max_length=2)]], AfterValidator(_of_the_grid)
    ]
    """Prefix and horizon: the LSTM is trained for each alone besides, as the paper's eighteen are."""

    def sizes(self, kind: str) -> dict[str, Any]:
        """Arguments of a network of a kind."""
        if kind == "lstm":
            return {"units": self.lstm_units, "dropout": self.dropout}
        return {"width": self.width, "layers": self.layers, "heads": self.heads, "dropout": self.dropout}


def train_all(params: RateTrainParams, flows: Path, output: Path, say: Callable[[str], None]) -> list[Path]:
    """Train what is not there yet; return every network's folder, `KIND-SEED` or `lstm-PREFIX-HORIZON-SEED`.

    What is there with other parameters, of other flows or by other code, is trained anew.

    Raises:
        OSError, ValueError: the flows cannot be read, or nothing can be learned from them; the line says why.
    """
    import torch

    from swiftqueue.studies.rate.model.flows import load, split
    from swiftqueue.studies.rate.model.networks import EVERY_PAIR, KINDS, save, train
    from swiftqueue.studies.rate.samples.tables import paths_in

    torch.set_num_threads(1)
    every = load(flows)
    of = {
        "paths": paths_in(flows),
        "params": params.model_dump(exclude={"seeds", "pairs"}),
        "code": code_hash("swiftqueue.studies.rate.model.networks", "swiftqueue.studies.rate.model.flows"),
    }
    wanted = [(kind, kind, EVERY_PAIR) for kind in KINDS]
    wanted += [(f"lstm-{n}-{k}", "lstm", ((n, k),)) for n, k in params.pairs]
    made = []
    for seed in params.seeds:
        divided = split(every, seed)
        for name, kind, pairs in wanted:
            folder = output / f"{name}-{seed}"
            made.append(folder)
            if _same(folder, of):
                say(f"{name}, seed {seed}: is there")
                continue
            network, error = train(
                kind,
                divided.train,
                divided.valid,
                params.sizes(kind),
                seed,
                epochs=params.epochs,
                batch_size=params.batch_size,
                learning_rate=params.learning_rate,
                say=partial(_said, say, name),
                fields=params.fields,
                pairs=pairs,
            )
            counts = {"train": len(divided.train), "valid": len(divided.valid)}
            alone = {} if pairs == EVERY_PAIR else {"pair": pairs[0]}
            about = {"seed": seed, "valid_mape": error, "flows": counts, "made_of": of}
            save(folder, network, {**about, **alone})
    return made


def _said(say: Callable[[str], None], name: str, line: str) -> None:
    say(f"{name}, {line}")


def _same(folder: Path, of: dict[str, Any]) -> bool:
    from swiftqueue.studies.rate.model.networks import load

    try:
        return bool(load(folder)[1].get("made_of") == of)
    except (OSError, ValueError):
        return False


def main(params: Given, flows: Given, output: Given) -> None:
    """Read `rate_train` of the params file and the flows; write the networks, a line an epoch.

    Networks in `output` that are not asked for any more are removed: `rate_evaluate` scores what is there.
    """
    from swiftqueue.models.networks.files import DESCRIPTION_FILE

    made = train_all(read(params, RateTrainParams), flows, output, lambda line: print(line, flush=True))
    for description in output.glob(f"*-*/{DESCRIPTION_FILE}"):
        if description.parent not in made:
            shutil.rmtree(description.parent)


if __name__ == "__main__":
    run_stage("rate_train", main)
