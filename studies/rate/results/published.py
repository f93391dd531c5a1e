"""The published studies of rate forecasts, as `swiftqueue rate` study, feedback, exchange and plain wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from swiftqueue.benchmarks.published import check, entries_of, origin
from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object
from swiftqueue.laboratory.report import tables as lab
from swiftqueue.studies.rate.model.plain import LAST
from swiftqueue.studies.rate.results import exchange as rate_exchange
from swiftqueue.studies.rate.results import feedback as rate_feedback
from swiftqueue.studies.rate.samples.tables import KERNEL, NS3

FILE: Final = Path("studies/rate/results/rate.json")
FIELDS_FILE: Final = Path("studies/rate/results/rate-fields.json")  # networks that see some fields alone
KERNEL_FILE: Final = Path("studies/rate/results/rate-kernel.json")  # flows that a kernel sent
PLAIN_FILE: Final = Path("studies/rate/results/rate-plain.json")  # flows that nobody forecast
PARTS: Final = ("seen", "held_out")
NEEDED: Final = {"flows", "paths", "source", "seeds", "grid", "headline", "alone"}
NETWORKS: Final = {"transformer": "**Transformer (ours)**", "lstm": "LSTM (the paper's)"}


def load(root: Path) -> dict[str, Any]:
    """Read what is published below a checkout; nothing, where nothing is."""
    files = {
        "some": FIELDS_FILE,
        "kernel": KERNEL_FILE,
        "plain": PLAIN_FILE,
        "fed_back": rate_feedback.FILE,
        "fed_kernel": rate_feedback.KERNEL,
        "fed_kernel_beside": rate_feedback.BESIDE,
        "exchanged": rate_exchange.FILE,
    }
    there = {key: root / file for key, file in files.items() if (root / file).is_file()}
    return {**entries_of(root / FILE), **{key: read_object(file) for key, file in there.items()}}


def take(study: Path, root: Path = Path()) -> None:
    """Publish a study in the place of the one before it of its kind.

    Raises:
        OSError: it is not there.
        ValueError: it is not one, no page is of such flows, or another that it stands beside has other paths.
    """
    found = read_object(study)
    source = found.get("source", NS3)
    if "exchange" in found:
        pages = {NS3: rate_exchange.FILE}
    elif "plain" in found:
        pages, source = {NS3: PLAIN_FILE}, found["plain"].get("source")
    elif "feedback" in found:
        pages = {NS3: rate_feedback.FILE}
        if source == KERNEL:
            pages = {KERNEL: rate_feedback.kernel_file(study, found, root)}
    else:
        check(study, found, NEEDED, "study.json of `swiftqueue rate study`")
        pages = {NS3: FIELDS_FILE} if found["fields"] else {NS3: FILE, KERNEL: KERNEL_FILE}
    if source not in pages:
        raise ValueError(f"{study}: its flows are of source {source}; there is a page for {', '.join(pages)}")
    file = root / pages[source]
    published = {**origin(), **found}
    if pages[source] == FIELDS_FILE:  # one study for each choice of fields
        published = {**entries_of(file), " ".join(found["fields"]): published}
    write_file(file, json.dumps(published, indent=1) + "\n")


def said(one: Mapping[str, Any]) -> str:
    """The measured figures, with the flows and the date."""
    paths, whose = one["paths"], {KERNEL: "flows of a kernel", NS3: "simulated flows"}
    learned, others = paths.get("train", 0), paths.get("held-out", 0)
    return (
        f"Measured on {one['date']} at commit `{one['commit']}`, on {one['machine']}. {one['flows']:,} "
        f"{whose[one['source']]} of {learned} paths to learn from, {others} others; "
        f"seeds {', '.join(map(str, one['seeds']))}. In brackets 95 % over seeds (Student's t)."
    )


def headline(one: Mapping[str, Any]) -> list[str]:
    """The pair with most to gain: every predictor, with the share that it forecasts too high."""
    pair = one["headline"]["pair"]
    names = [
        word for part in ("seen", "held-out") for word in (f"{part} paths, %", "median, %", "too high, %")
    ]
    lines = lab.head_of(["predictor", *names])
    order = sorted(one["grid"], key=lambda name: float(one["grid"][name]["held_out"][pair]["mean"]))
    for name in order:
        cells = [one["grid"][name][part][pair] for part in PARTS]
        lines.append(
            lab.row_of(
                [
                    NETWORKS.get(name, f"`{name}`"),
                    *(text for c in cells for text in (_of(c), _median(c), _over(c))),
                ]
            )
        )
    lines.append("")
    for part in PARTS:
        verdict = one["headline"][part]
        better = [name for name, settled in verdict["settled_better_than"].items() if settled]
        others = [name for name, settled in verdict["settled_better_than"].items() if not settled]
        lines.append(
            f"- Ours on {part.replace('_', '-')} paths: {_of(verdict['mape'])} %, wanted "
            f"{100 * verdict['wanted']:.0f} %: {'reached' if verdict['reached'] else 'not reached'}."
        )
        lines.append(
            f"  Settled better than: {', '.join(better) or 'none'}; not than: {', '.join(others) or 'none'}."
        )
    return lines


def studies(one: Mapping[str, Any], form: str = "`{}`") -> dict[str, Mapping[str, Any]]:
    """The study of networks that see all fields, and those of some; their names as `form` has each field."""
    some = {", ".join(map(form.format, study["fields"])): study for study in one.get("some", {}).values()}
    return {"all": one, **some}


def fields(one: Mapping[str, Any]) -> list[str]:
    """The pair with most to gain, by networks that see all fields and by those that see some."""
    if "some" not in one:
        return [
            "Nothing is published yet: `rate_train.fields`, `swiftqueue rate study`, `rate results FILE`."
        ]
    lines = lab.head_of(
        ["predictor", "fields", "seen paths, %", "median, %", "held-out paths, %", "median, %"]
    )
    for name in NETWORKS:
        for seen, study in studies(one).items():
            cells = [study["grid"][name][part][study["headline"]["pair"]] for part in PARTS]
            lines.append(
                lab.row_of([NETWORKS[name], seen, *(text for c in cells for text in (_of(c), _median(c)))])
            )
    return lines


def pairs(one: Mapping[str, Any]) -> list[str]:
    """Every pair on held-out paths, by each network and the fields that it sees."""
    each = {
        f"{name}, {told}": study["grid"][kind]["held_out"]
        for kind, name in {"transformer": "ours", "lstm": "LSTM"}.items()
        for told, study in studies(one).items()
    }
    lines = lab.head_of(["pair", *each])
    for pair in next(iter(each.values())):
        lines.append(lab.row_of([pair.replace("-", " to "), *(_of(study[pair]) for study in each.values())]))
    return lines


def alone(one: Mapping[str, Any]) -> list[str]:
    """LSTMs trained for one pair each, beside the one that learned all pairs."""
    lines = lab.head_of(["pair", "paths", "alone, %", "all pairs at once, %", "difference, points"])
    for pair, parts in one["alone"].items():
        n, k = pair.split("-")
        for part in PARTS:
            cells = [_of(parts[part][key]) for key in ("alone", "all", "difference")]
            lines.append(lab.row_of([f"{n} to {k}", part.replace("_", "-"), *cells]))
    return lines


def grid(one: Mapping[str, Any], part: str) -> list[str]:
    """Every pair of prefix and horizon, in % without intervals (the file has them)."""
    pairs = list(next(iter(one["grid"].values()))[part])
    prefixes = list(dict.fromkeys(pair.split("-")[0] for pair in pairs))
    horizons = list(dict.fromkeys(pair.split("-")[1] for pair in pairs))
    lines: list[str] = []
    for n in prefixes:
        lines += ["", f"From {n} samples, to packet:", "", *lab.head_of(["predictor", *horizons])]
        for name, parts in one["grid"].items():
            cells = [f"{100 * parts[part][f'{n}-{k}']['mean']:.1f}" for k in horizons]
            lines.append(lab.row_of([NETWORKS.get(name, f"`{name}`"), *cells]))
    return lines


def plain(one: Mapping[str, Any]) -> list[str]:
    """Times of plain downloads and BBR's estimate by packet, quartiles over flows."""
    found = one["plain"]
    lines = [
        f"Measured on {one['date']} at commit `{one['commit']}`, in ns-3: {found['flows']:,} flows of BBR.",
        "",
        *lab.head_of(
            ["rate, Mbit/s", "round trip, ms", "buffer, BDP", "flows", f"{LAST:,} packets, s", "most"]
        ),
    ]
    for each in found["downloads"]:
        where = (f"{each[key]:g}" for key in ("mbps", "rtt_ms", "buffer_bdp"))
        lines.append(lab.row_of([*where, str(each["n"]), _quartiles(each, ".2f"), f"{each['most']:.2f}"]))
    prefixes = list(dict.fromkeys(pair.split("-")[0] for pair in found["growth"]))
    lines += ["", *lab.head_of(["packet", "estimate, Mbit/s", *(f"to sample {n}" for n in prefixes)])]
    for packet, each in found["estimates"].items():
        growth = (found["growth"].get(f"{n}-{packet}") for n in prefixes)
        cells = [_quartiles(ratio, ".1f") if ratio else lab.NONE for ratio in growth]
        lines.append(lab.row_of([packet, _quartiles(each, ".2f"), *cells]))
    return lines


def _quartiles(cell: Mapping[str, Any], form: str) -> str:
    if not cell["n"]:
        return lab.NONE
    return f"{cell['median']:{form}} ({cell['lower']:{form}} to {cell['upper']:{form}})"


def _of(cell: Mapping[str, Any]) -> str:
    if cell["low"] is None:
        return f"{100 * cell['mean']:.1f}"
    return f"{100 * cell['mean']:.1f} ({100 * cell['low']:.1f} to {100 * cell['high']:.1f})"


def _median(cell: Mapping[str, Any]) -> str:
    return f"{100 * cell['median']:.1f}"


def _over(cell: Mapping[str, Any]) -> str:
    return f"{100 * cell['over']:.0f}"
