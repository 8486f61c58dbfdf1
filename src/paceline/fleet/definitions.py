"""Figures of a fleet: one definition for studies of files and for the monitor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: From this slowdown on a job counts as straggling (what-if paper, section 4.2). Variation that
#: passes from worker to worker is left out. Where passes are whole, as in the paper's traces, no
#: such part of S is known, so S is the paper's.
STRAGGLING = 1.1
#: From this correlation on, sequence lengths are the cause (what-if paper, 5.3).
SEQUENCES = 0.9
#: From this share of the loss on, workers or the last stage are the cause (Figures 6 and 7).
HALF = 0.5
#: Slowdown of jobs that are listed singly (4.1).
SEVERE = 3.0

#: Figure 5's kinds of operation: result.json counts send and recv of one direction together.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "forward-compute": "forward compute",
        "backward-compute": "backward compute",
        "forward-pp-comm": "forward transfers",
        "backward-pp-comm": "backward transfers",
        "grads-reduce-scatter": "gradients reduce-scatter",
        "params-all-gather": "parameters all-gather",
    }
)
COMPUTE_KINDS = ("forward-compute", "backward-compute")


#: Part of the summary -> text on ByteDance's jobs, for the tables beside the charts.
PAPER_TABLES: Mapping[str, str] = MappingProxyType(
    {
        "coverage": "3,079 jobs of at least 128 GPUs; 31.7% have 256 or more, 18.3% 512 or more, "
        "3.6% 5,000 or more; about half of all GPU-hours of LLM training (3.1)",
        "severe": "all of them large; fewer than 3% of the workers are to blame, and mostly "
        "compute (4.1)",
        "funnel": "more than 15 restarts; of the jobs that could not be analysed 28% lacked "
        "degrees of parallelism, 28% had too few steps and 25% were corrupt; a discrepancy "
        "above 5% (section 7)",
    }
)


@dataclass(frozen=True)
class Definition:
    """A figure.

    Attributes:
        name: its name in requests.
        title: a question or a noun.
        text: its content, its jobs, and its figure in the paper.
        x_label: label of its axis; "" for tables.
        percent: values are shares.
        paper: values of ByteDance's jobs, from the paper and its review.
        mark: a value to mark on the axis, and its name.
    """

    name: str
    title: str
    text: str
    x_label: str = ""
    percent: bool = False
    paper: str = ""
    mark: tuple[float, str] | None = None


_OF_SLOW = f"of straggling jobs (S at least {STRAGGLING} without passing variation)"

DEFINITIONS: Mapping[str, Definition] = MappingProxyType(
    {
        one.name: one
        for one in (
            Definition(
                "waste",
                "Waste of the jobs",
                "How many jobs waste at most that share of their GPU time (Figure 3). Variation "
                "that passes from worker to worker is a part of it, but makes no job straggle.",
                "waste (share of the GPU time)",
                True,
                "42.5% of jobs straggle; waste 21.3% at the 90th and 45.0% at the 99th percentile; "
                "10.4% of the GPU-hours are wasted",
                (1 - 1 / STRAGGLING, f"S = {STRAGGLING}"),
            ),
            Definition(
                "steps",
                "Are all steps alike?",
                f"Steps {_OF_SLOW}. A steep curve at 1: most steps are equally slow, and a few "
                "profiled steps tell (Figure 4).",
                "slowdown of the step / slowdown of the job",
                False,
                "1.0 at the median, 1.06 at the 90th percentile",
                (1.0, "the job"),
            ),
            Definition(
                "kinds",
                "Which operations waste it",
                "Waste with only this kind of operation as it was and all else ideal; sends and "
                "recvs together (Figure 5).",
                "waste of this kind alone",
                True,
                "compute wastes most, transfers between stages less, data-parallel traffic least",
            ),
            Definition(
                "gpus",
                "Slowdown and size",
                "One point per job (4.4).",
                "GPUs",
                False,
                "no clear tie between size and slowdown",
            ),
            Definition(
                "m_w",
                "Are single workers to blame?",
                f"M_W {_OF_SLOW}: what would vanish of the loss if the slowest 3% of the workers "
                "were ideal (Figure 6).",
                "M_W",
                False,
                "M_W is above 0.5 in 1.7% of straggling jobs; their mean S is 3.04, that of all "
                "1.28",
                (HALF, "half"),
            ),
            Definition(
                "m_s",
                "Is the last stage to blame?",
                "M_S of all jobs: what would vanish if the last pipeline stage were ideal; 0 with "
                "one stage (Figure 7: “for each job that uses pipeline parallelism”).",
                "M_S",
                False,
                "M_S is at least 0.5 in 39.3% of jobs; 21.1% have one stage",
                (HALF, "half"),
            ),
            Definition(
                "m_s_slow",
                "Is the last stage to blame, in slow jobs?",
                f"The same {_OF_SLOW}.",
                "M_S",
                False,
                "",
                (HALF, "half"),
            ),
            Definition(
                "correlation",
                "Are sequence lengths to blame?",
                "Do forward and backward vary alike over microbatches? From a correlation of "
                f"{SEQUENCES} on, sequences most likely differ in length; {_OF_SLOW} (Figure 11).",
                "correlation",
                False,
                "at least 0.9 in 21.4% of straggling jobs; their mean S is 1.34",
                (SEQUENCES, f"{SEQUENCES}"),
            ),
            Definition(
                "sequences",
                "Slowdown and sequence length",
                "One point per job, by its longest sequences: longer ones differ more (Figure 12).",
                "sequence length",
                False,
                "S grows with the longest sequence",
            ),
            Definition(
                "discrepancy",
                "How far is the simulation from the traces?",
                "Difference of the simulated from the traced mean step, of jobs that count and of "
                "those left out for it (section 6).",
                "discrepancy",
                True,
                "1.3% at the median, 5.5% at the 90th percentile",
            ),
        )
    }
)
