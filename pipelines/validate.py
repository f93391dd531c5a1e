"""Stage `validate`: packet tables and features meet their expectations, or the pipeline stops here."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import polars as pl

from feature_store import expectations as ex
from feature_store.distribution_shift import slice_shifts
from feature_store.schema import scan_packets, traces_in
from feature_store.windows import schema_hash
from models.state import state_dir
from pipelines.stage import StageError, atomic_dir, check_number, load_params, stage_main

# Parameter: the lowest and the highest value that make sense.
PARAMETERS = {"max_unknown_latency": (0, 1), "max_latency_s": (0.001, 3600), "max_shift_psi": (0.01, 100)}


def validate(packets_dir: Path, windows_dir: Path, params: dict[str, Any]) -> ex.Validation:
    """Run every check on the tables under `packets_dir` and the features under `windows_dir`.

    Where columns are missing or of another type, the other checks have nothing to stand on and are
    not run.

    Raises:
        StageError: windows are missing, or are of other traces than the packet tables.
    """
    from rich.console import Console
    from rich.progress import Progress

    meta = read_meta(windows_dir)
    traces = traces_in(packets_dir)
    if sorted(meta["traces"]) != traces:
        raise StageError(
            f"packet tables are of {', '.join(traces) or 'no trace'}, windows of "
            f"{', '.join(sorted(meta['traces']))}; run the stage `windows` again"
        )
    validation = ex.Validation()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("expectations", total=2 * len(traces) + 2)
        schemas = {t: scan_packets(packets_dir, t).collect_schema() for t in traces}
        validation.run(ex.schema_check(schemas, (meta["schema_hash"], schema_hash())))
        progress.advance(task)
        if validation.failures:
            return validation
        shifts = []
        for trace in traces:
            packets = scan_packets(packets_dir, trace).collect()
            limits = params["max_unknown_latency"], params["max_latency_s"]
            validation.run(ex.packets_check(trace, packets, *limits))
            progress.advance(task)
            features = pl.read_parquet(windows_dir / trace / "features.parquet")
            validation.run(ex.features_check(trace, features))
            slices = meta["traces"][trace]
            tests = [r["test"] for r in slices["rounds"]]
            shifts.append(slice_shifts(trace, features, slices["pretrain"], tests))
            progress.advance(task)
        validation.run(ex.shift_check(pl.concat(shifts), params["max_shift_psi"]))
        progress.advance(task)
    return validation


def read_meta(windows_dir: Path) -> dict[str, Any]:
    """Return the windows' meta.json, or raise StageError."""
    path = windows_dir / "meta.json"
    if not path.is_file():
        raise StageError(f"{path} is missing; run the stage `windows` first")
    meta: dict[str, Any] = json.loads(path.read_text())
    return meta


def write(validation: ex.Validation, output: Path) -> None:
    """Write `report.json` and `docs/` into `output`, in one step."""
    with atomic_dir(output) as partial:
        validation.write_docs(partial / "docs")
        report = {"success": not validation.failures, "checks": validation.report}
        (partial / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def main() -> None:
    """Validate; on failure say what and where, one line each, and stop the pipeline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True)
    parser.add_argument("--packets", type=Path, required=True)
    parser.add_argument("--windows", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    with stage_main("validate"):
        params = load_params(args.params, "validate", set(PARAMETERS))
        for key, (low, high) in PARAMETERS.items():
            check_number("validate", params, key, low, high)
        validation = validate(args.packets, args.windows, params)
        failed = state_dir() / "validation"  # of a failed run; `--output` is for passed ones
        write(validation, failed if validation.failures else args.output)
        if validation.failures:
            shown = os.path.relpath(failed) if failed.is_relative_to(Path.cwd()) else failed
            lines = "\n".join(f"  {failure}" for failure in validation.failures)
            raise StageError(
                f"{len(validation.failures)} expectations failed; see {shown}/docs/index.html\n{lines}"
            )
    expectations = sum(c["expectations"] for c in validation.report.values())
    print(f"{expectations} expectations met; data docs: {args.output}/docs/index.html")


if __name__ == "__main__":
    main()
