"""Tables of metrics under the names that trainers and own loops use: CSV and JSON lines."""

import json

import numpy as np
import pytest

from paceline.errors import TraceError
from paceline.sources.step_logs.files import load_step_log

SECONDS = [0.5 if step < 55 else 0.75 for step in range(60)]
ENDS = np.cumsum(SECONDS)

#: Name -> the row of a step, and whether its first step has a time.
TABLES = {
    "seconds": (lambda i, s, end: {"step": i, "loss": 2.0, "step_time_s": s}, True),
    "no unit": (lambda i, s, end: {"step": i, "loss": 2.0, "train/step_time": s}, True),
    "milliseconds": (lambda i, s, end: {"iteration": i, "dt_ms": 1000 * s}, True),
    "a clock": (lambda i, s, end: {"step": i, "loss": 2.0, "_timestamp": 1.7e9 + end}, False),
    "dates": (
        lambda i, s, end: {"iter": i, "timestamp": f"2026-11-27T10:00:{end:06.3f}"},
        False,
    ),
    "slime's metrics": (lambda i, s, end: {"step": i, "perf/step_time": s, "perf/mfu": 0.3}, True),
}


def written(path, rows):
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        text = "\n".join(lines) + "\n"
    path.write_text(text)
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("name", TABLES)
def test_names_of_trainers_are_known(tmp_path, name, suffix):
    row, has_first = TABLES[name]
    rows = [row(i, s, end) for i, (s, end) in enumerate(zip(SECONDS, ENDS, strict=True))]
    times = load_step_log(written(tmp_path / f"metrics.{suffix}", rows))
    first = 0 if has_first else 1
    assert times.steps.tolist() == list(range(first, 60))
    assert times.duration_s[:, 0] == pytest.approx(SECONDS[first:])
    assert any("is read as seconds" in note for note in times.warnings) == (name == "no unit")
    assert any("mean between two points" in note for note in times.warnings) == (not has_first)


def test_verls_file_logger_has_metrics_in_an_inner_object(tmp_path):
    """Validations have lines without a step's time. A step's tokens are its planned work."""
    rows = []
    for i, s in enumerate(SECONDS):
        tokens = 5_000_000 + 10_000 * i
        rows.append({"step": i, "data": {"timing_s/step": s, "perf/total_num_tokens": tokens}})
        if i % 20 == 0:
            rows.append({"step": i, "data": {"val-core/gsm8k/acc/mean@1": 0.5}})
    times = load_step_log(written(tmp_path / "run.jsonl", rows))
    assert times.duration_s[:, 0] == pytest.approx(SECONDS)
    assert times.workload["tokens"].tolist() == [5_000_000 + 10_000 * i for i in range(60)]
    assert times.warnings == ()


def test_ranks_of_a_table_are_apart(tmp_path):
    rows = [
        {"step": i, "rank": rank, "step_time_s": s + rank}
        for i, s in enumerate(SECONDS)
        for rank in (0, 1)
    ]
    times = load_step_log(written(tmp_path / "metrics.csv", rows))
    assert times.ranks.tolist() == [0, 1]
    assert times.duration_s[:, 1] == pytest.approx([s + 1 for s in SECONDS])


def test_a_time_of_validations_is_no_step_time(tmp_path):
    rows = [{"step": i, "eval/step_time": s} for i, s in enumerate(SECONDS)]
    with pytest.raises(TraceError, match=r"lacks the columns duration_s .*it has step, eval/step_"):
        load_step_log(written(tmp_path / "metrics.jsonl", rows))


def test_several_step_times_are_refused(tmp_path):
    rows = [{"step": i, "actor/step_time": s, "critic/step_time": s} for i, s in enumerate(SECONDS)]
    with pytest.raises(TraceError, match="has step_time of several runs"):
        load_step_log(written(tmp_path / "metrics.jsonl", rows))


def test_the_projects_own_columns_come_first(tmp_path):
    rows = [{"step": i, "duration_s": s, "step_time_s": 9.0} for i, s in enumerate(SECONDS)]
    times = load_step_log(written(tmp_path / "metrics.jsonl", rows))
    assert times.duration_s[:, 0] == pytest.approx(SECONDS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"step": 2, "step_time_s": "fast"}', "the column step_time_s holds words, not numbers"),
        ('{"step": 2, "step_time_s": [1]}', "the column step_time_s holds words, not numbers"),
        ("[1, 2]", ":2 is no JSON object"),
        ('{"step": 2.5, "step_time_s": 1}', "step must be a whole number"),
    ],
)
def test_damaged_lines_are_told(tmp_path, line, message):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "step_time_s": 0.5}\n' + line + "\n")
    with pytest.raises(TraceError, match=message):
        load_step_log(path)
