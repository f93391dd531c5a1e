"""The paper's exhibits, and the rows that answer each.

Numbers are those of its first version on arXiv; the later version's stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from swiftqueue.common.section import near
from swiftqueue.models.training.protocol import PAPER, EvaluationProtocol
from swiftqueue.studies.swiftqueue.asked import ACKED, LAST, LSTM, OURS, PREVIOUS, SHOWN, RowRequest

TREES: Final = "paper-xgboost"  # sections of forecasters.yaml
PLAIN: Final = "paper-mse"
BASELINES: Final = (LSTM, TREES)
ALL: Final = (
    *(OURS, PLAIN, LSTM, TREES, "window", "bilstm", "mlp", "event-stream", "xgboost"),
    *("ewma-flow", LAST, "last-queue", "last-sender"),
)
DEPLOYED: Final = tuple(each for each in ALL if each not in (PLAIN, "bilstm"))
KINDS: Final = ("video-wifi", "web-wifi", "video-eth", "web-eth")
DEFAULT: Final = "default"


@dataclass(frozen=True)
class Form:
    """How long, how often and how much."""

    name: str
    seeds: int
    kinds: EvaluationProtocol
    kinds_s: float  # length of a trace of section 6.1
    swept: EvaluationProtocol
    swept_s: float
    ends_only: bool  # whether each axis has only two points
    every: tuple[float, ...]  # fine-tuning intervals, in test slices; 1.0 as in `rows`: keys are of text
    not_swept: Sequence[str] = ()  # methods that figures 9 to 12 do without

    def protocol(self, trace: str) -> EvaluationProtocol:
        """Return the slices of a trace."""
        return self.kinds if trace in KINDS else self.swept

    def seconds(self, trace: str) -> float:
        """Return the length of a trace, s."""
        return self.kinds_s if trace in KINDS else self.swept_s


SMALL: Final = Form(
    name="small",
    seeds=3,
    kinds=EvaluationProtocol("small-kinds", 16, 4, 4),
    kinds_s=33,
    swept=EvaluationProtocol("small-swept", 4, 0.8, 4),
    swept_s=12.5,
    ends_only=True,
    every=(0.25, 1.0, 4),
    not_swept=("window", "bilstm"),  # ours both; they take longer there than all others together
)
FULL: Final = Form(
    name="full",
    seeds=5,
    kinds=PAPER,
    kinds_s=1800,
    swept=EvaluationProtocol("full-swept", 100, 20, 100),
    swept_s=300,
    ends_only=False,
    every=(0.2, 1.0, 5),
)
FORMS: Final = {form.name: form for form in (FULL, SMALL)}  # the longer one is shown where it is complete


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper."""

    name: str
    title: str
    later: str  # its number in the later version
    claim: str
    factor: float  # factor that the claim's first figure must have over its second; see verdicts.py
    traces: Mapping[str, str]  # words of each, in order
    methods: Sequence[str]
    small: Sequence[str] = ()  # traces of the small form; none named: all
    visibility: str = PREVIOUS
    score: str = "f1_truth_change"  # the variant of F1 that the claim is about (docs/EVALUATION.md)

    def shown(self, form: Form) -> list[str]:
        """Return the traces of a form."""
        return [trace for trace in self.traces if not (form.ends_only and self.small) or trace in self.small]

    def compared(self, form: Form) -> list[str]:
        """Return the methods of a form."""
        left_out = () if set(self.traces) <= set(KINDS) else form.not_swept
        return [method for method in self.methods if method not in left_out]

    def rows(self, form: Form) -> Iterator[RowRequest]:
        """Yield all rows of a form."""
        intervals = form.every if self.name == "figure-16" else (1.0,)
        for seed in range(1, form.seeds + 1):
            for trace in self.shown(form):
                for method in self.compared(form):
                    for every in intervals:
                        yield RowRequest(trace, method, seed, every, self.visibility)


_WORDS: Final = ("video, varying", "web, varying", "video, steady", "web, steady")
_KINDS: Final = dict(zip(KINDS, _WORDS, strict=True))
_SHOWN: Final = {SHOWN: _KINDS[SHOWN]}
_FLOWS: Final = {f"flows-{n}": f"{n}" for n in (20, 50, 100, 500)}
_BUFFERS: Final = {f"buffer-{bdp}": f"{bdp} BDP" for bdp in (5, 10, 15, 20)}
_DELAYS: Final = {f"delay-{ms}": f"{ms} ms" for ms in (40, 100, 150, 200)}
_BETTER: Final = "F1 above BiLSTM and XGBoost"


def _swept(
    number: int,
    later: int,
    what: str,
    gain: tuple[int, int],
    default: str,
    traces: Mapping[str, str],
    small: str,
) -> Exhibit:
    """Return a figure that changes one thing of the default environment; the small form has two points."""
    return Exhibit(
        name=f"figure-{number}",
        title=f"Figure {number}: {what}",
        later=f"figure {later}",
        claim=f"{_BETTER} by {gain[0]} to {gain[1]} %",
        factor=1 + gain[0] / 100,
        traces={DEFAULT: default, **traces},
        methods=ALL,
        small=(DEFAULT, small),
    )


EXHIBITS: Final = (
    Exhibit(
        name="table-1",
        title="Table 1",
        later="table 1",
        claim="Traces have a median latency of 57 to 74 ms (asked: within a factor of 2)",
        factor=0.5,
        traces=_KINDS,
        methods=(LAST,),
    ),
    Exhibit(
        name="figure-3",
        title="Figure 3",
        later="figure 3",
        claim="The encoder maps packets of low and of high latency apart (asked: more than its inputs are)",
        factor=1.0,
        traces=_SHOWN,
        methods=(OURS,),
    ),
    Exhibit(
        name="figure-7a",
        title="Figure 7a",
        later="figure 7a",
        claim=f"{_BETTER} by 45 to 65 %",
        factor=1.45,
        traces=_KINDS,
        methods=ALL,
    ),
    Exhibit(
        name="figure-7a-acked",
        title="Figure 7a, acked",
        later="not in the paper",
        claim=f"{_BETTER} by 45 to 65 %",
        factor=1.45,
        traces=_KINDS,
        methods=DEPLOYED,
        visibility=ACKED,
        score="f1_prediction_change",
    ),
    _swept(9, 10, "flows", (29, 60), "10", _FLOWS, "flows-100"),
    _swept(10, 9, "queue limit", (29, 62), "2 BDP", _BUFFERS, "buffer-20"),
    _swept(11, 11, "propagation", (29, 65), "20 ms", _DELAYS, "delay-40"),
    _swept(12, 12, "congestion control", (25, 49), "DCTCP", {"cubic": "Cubic", "bbr": "BBR"}, "bbr"),
    Exhibit(
        name="figure-13",
        title="Figure 13: F1 and seconds of fine-tuning",
        later="figure 15",
        claim="Its head is tuned 3.8 to 4.4 times as fast as the BiLSTM's",
        factor=3.8,
        traces=_KINDS,
        methods=ALL,
    ),
    Exhibit(
        name="figure-14",
        title="Figure 14: 150 packets",
        later="figure 14",
        claim="Tuned, it is nearer to what came than the BiLSTM, and better in F1 than untuned",
        factor=1.0,
        traces=_SHOWN,
        methods=(OURS, LSTM),
    ),
    Exhibit(
        name="figure-15",
        title="Figure 15: the loss",
        later="figure 13",
        claim="F1 17 to 25 % above that of the standard loss",
        factor=1.17,
        traces=_KINDS,
        methods=(OURS, PLAIN),
    ),
    Exhibit(
        name="figure-16",
        title="Figure 16: fine-tuning interval",
        later="figure 16",
        claim="Intervals of five minutes cost next to nothing (asked: at most 5 % of F1)",
        factor=0.95,
        traces=_SHOWN,
        methods=(OURS,),
    ),
    Exhibit(
        name="figure-17",
        title="Figure 17: batch size",
        later="figure 17",
        claim="Batches of 8 cost next to nothing (asked: at most 5 % of F1)",
        factor=0.95,
        traces=_SHOWN,
        methods=(OURS,),
    ),
)


def chosen(names: Sequence[str]) -> list[Exhibit]:
    """Return the exhibits of some names; none named means all.

    Raises:
        ValueError: there is none of a name.
    """
    known = {each.name: each for each in EXHIBITS}
    if wrong := [name for name in names if name not in known]:
        raise ValueError(f"the paper has no exhibit {wrong[0]!r}; {near(wrong[0], list(known))}")
    return [known[name] for name in names] or list(EXHIBITS)


def command(exhibit: Exhibit, form: Form = FULL) -> str:
    """Return the command that computes an exhibit's rows."""
    words = ["swiftqueue paper forecasts", exhibit.name]
    words += ["--small"] if form.name == SMALL.name else []
    words += [f"--seeds {form.seeds}"] if form.seeds != FORMS[form.name].seeds else []
    return " ".join(words)
