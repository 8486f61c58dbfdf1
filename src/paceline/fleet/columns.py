"""The two tables of a study, column by column: ``jobs`` (a row per trace) and ``steps``.

The schema is the same for all traces. A number that a row lacks is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Version of the two tables. Later versions add columns and change no meaning.
SCHEMA = 1

ANALYSED, DISCARDED, FAILED = "analysed", "discarded", "failed"


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: its name.
        type: one of :func:`arrow_types`.
        about: its meaning.
        unit: unit of its numbers; "" if they have none.
        varies: whether it describes the run of the analysis, and so differs between runs.
    """

    name: str
    type: str
    about: str
    unit: str = ""
    varies: bool = False


@dataclass(frozen=True)
class Rule:
    """A reason why a job does not count in the figures.

    Attributes:
        name: its name in the column ``rule``.
        status: ``discarded`` (by an option) or ``failed`` (not analysed).
        about: its meaning.
    """

    name: str
    status: str
    about: str


#: Rules in the order of the checks, the order of the what-if paper (3.1, section 7).
RULES = (
    Rule("copy", DISCARDED, "the same trace and job stand in an earlier row"),
    Rule("gpus", DISCARDED, "fewer GPUs than --min-gpus"),
    Rule("restarts", DISCARDED, "more restarts than --max-restarts"),
    Rule("degrees", FAILED, "the degrees of parallelism cannot be told"),
    Rule("steps", DISCARDED, "fewer whole steps than --min-steps"),
    Rule("corrupt", FAILED, "the trace cannot be read as that of a whole job"),
    Rule("unfit", FAILED, "the operations form no training step that can be simulated"),
    Rule("memory", FAILED, "the analysis needs more memory than --memory"),
    Rule("timeout", FAILED, "the analysis takes longer than --timeout"),
    Rule("killed", FAILED, "the process was killed three times"),
    Rule("internal", FAILED, "Paceline itself fails: report it"),
    Rule("discrepancy", DISCARDED, "the simulation differs by more than --max-discrepancy"),
)

_SHARE = "share of T - T_ideal; null where that is under 0.1% of T"

JOBS = (
    Column("key", "text", "of the trace, its job file, the options and the analysis's version"),
    Column("path", "text", "the trace, as it was given; unique in the table"),
    Column("name", "text", "the job, by manifest, job file or file name"),
    Column("status", "text", "analysed, discarded (by a rule) or failed (no analysis)"),
    Column("rule", "text", "rule that excludes it, a name of RULES; null if it counts"),
    Column("error", "text", "the rule's reason in one line"),
    Column("team", "text", "by the manifest"),
    Column("started", "time", "by the manifest"),
    Column("labels", "labels", "further columns of the manifest"),
    Column("trace_bytes", "whole", "size of the trace", "bytes"),
    Column("operations", "whole", "rows of the trace"),
    Column("steps", "whole", "steps analysed"),
    Column("workers", "whole", "workers (replica, stage) that the trace shows"),
    Column("gpus", "whole", "by the manifest, else the job's world size"),
    Column("dp", "whole", "data-parallel ranks"),
    Column("pp", "whole", "pipeline stages"),
    Column("tp", "whole", "tensor-parallel ranks"),
    Column("cp", "whole", "context- or sequence-parallel ranks (dsp_size)"),
    Column("vpp", "whole", "chunks per stage"),
    Column("restarts", "whole", "by the manifest"),
    Column("max_seq_len", "whole", "longest sequence, by the manifest", "tokens"),
    Column("gpu_hours", "number", "by the manifest, else gpus x traced time", "h"),
    Column("gpu_hours_source", "text", "given (manifest) or traced"),
    Column("step_s", "number", "traced mean step", "s"),
    Column("simulated_s", "number", "T, the simulated mean step", "s"),
    Column("ideal_s", "number", "T_ideal, the mean step without stragglers", "s"),
    Column("slowdown", "number", "S = T / T_ideal"),
    Column("slowdown_low", "number", "lower end of its 90% interval over the steps"),
    Column("slowdown_high", "number", "upper end"),
    Column("slowdown_paper", "number", "S by the paper's reference for every kind"),
    Column("slowdown_lasting", "number", "S of the typical step, if passes come in parts"),
    Column("slowdown_judged", "number", "S without passing variation that no finding explains"),
    Column("waste", "number", "1 - 1/S"),
    Column(
        "discrepancy",
        "number",
        "difference of T from the traced step (less overlap)",
    ),
    Column("replay_error", "number", "the discrepancy with launch delays replayed"),
    Column("launch_slowdown", "number", "traced step (less overlap) / T"),
    Column("launch_step_start", "number", "T with only the delays before steps / T"),
    Column("step_modes_ratio", "number", "ratio of the two lengths of steps, if there are two"),
    Column("clock_std_s", "number", "standard deviation of clock offsets", "s"),
    Column("clocks_corrected", "flag", "whether they were corrected"),
    Column("m_w", "number", f"M_W, of the slowest 3% of workers: {_SHARE}"),
    Column("m_w_paper", "number", "M_W with the paper's reference"),
    Column("m_s", "number", f"M_S, of the last stage: {_SHARE}; 0 where pp = 1"),
    Column("m_w_only", "number", "M_W by what these workers alone slow down"),
    Column("m_s_only", "number", "M_S by what the last stage alone slows down"),
    Column("forward_backward_correlation", "number", "of microbatches' computes (5.3)"),
    Column("slowdown_by_kind", "numbers", "S_t: kind -> S with only that kind's durations"),
    Column("waste_by_kind", "numbers", "kind -> 1 - 1/S_t"),
    Column("cause", "text", "the main cause; healthy without any"),
    Column("causes", "causes", "all findings, by share"),
    Column("remedy", "text", "the best remedy; null without one"),
    Column("remedy_gain", "number", "its predicted gain, share of the step"),
    Column("remedy_action", "text", "what to do"),
    Column("slow_hosts", "texts", "hosts that findings about machines name"),
    Column("actual_s", "number", "of the waterfall: the traced mean step", "s"),
    Column("compute_s", "number", "of the waterfall: pure compute of a worker", "s"),
    Column("headline", "text", "the result in a line"),
    Column("warnings", "texts", "codes of warnings"),
    Column("seconds", "number", "time of the analysis", "s", varies=True),
    Column("peak_memory", "whole", "peak memory of the analysis", "bytes", varies=True),
    Column("attempts", "whole", "started analyses, including killed ones", varies=True),
    Column("place", "text", "host and process of the analysis", varies=True),
)

STEPS = (
    Column("key", "category", "of the job"),
    Column("job", "category", "its name"),
    Column("step", "whole", "number of the step"),
    Column("step_time", "number", "as traced", "s"),
    Column("simulated", "number", "as simulated", "s"),
    Column("ideal", "number", "without stragglers", "s"),
    Column("slowdown", "number", "S of the step, simulated / ideal"),
)


def arrow_types() -> dict[str, Any]:
    """Type of a column -> the type in Arrow and parquet."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    cause = pa.struct(
        [
            pa.field("cause", text),
            pa.field("share", number),  # of T - T_ideal; null outside S
            pa.field("share_of_step", number),
            pa.field("low", number),  # 90% interval of share (of share_of_step outside S)
            pa.field("high", number),
            pa.field("confidence", number),
            pa.field("place", text),
        ]
    )
    return {
        "text": text,
        "category": pa.dictionary(pa.int32(), text),
        "whole": pa.int64(),
        "number": number,
        "flag": pa.bool_(),
        "time": pa.timestamp("us", tz="UTC"),
        "texts": pa.list_(text),
        "labels": pa.map_(text, text),
        "numbers": pa.map_(text, number),
        "causes": pa.list_(cause),
    }


def arrow_schema(columns: tuple[Column, ...]) -> Any:
    """The ``pyarrow.Schema`` of a table; the fields' metadata has units and meanings."""
    import pyarrow as pa

    types = arrow_types()
    return pa.schema(
        [
            pa.field(
                column.name,
                types[column.type],
                metadata={"about": column.about, "unit": column.unit},
            )
            for column in columns
        ]
    )
