"""NDTimeline's raw log: lines as veScale's LocalRawNDHandler writes them, and fused calls."""

import gzip
from collections import defaultdict

import numpy as np
import pytest

from fused_jobs import play
from paceline.errors import TraceError
from paceline.sources import ndtimeline
from paceline.sources.importers import find_files
from paceline.trace import OpKind
from paceline.whatif import analyze

BASE_S = 1_710_332_816.0
STAGES, DP = 4, 2


def raw_lines(rows, *, tagged=False):
    """A line per rank and metric: all its parts, over the range of all steps, like a flush."""
    parts = defaultdict(list)
    for dp, stage, step, name, start_s, end_s in rows:
        parts[stage * DP + dp, dp, stage, name].append((step, start_s, end_s))
    lines = []
    for (rank, dp, stage, name), own in sorted(parts.items()):
        own.sort()
        durations = [end_s - start_s for _, start_s, end_s in own]
        starts = [BASE_S + start_s for _, start_s, _ in own]
        steps = [step for step, _, _ in own]
        tags = [{"_inner_global_step": step} if tagged else {} for step in steps]
        lines.append(
            f"2026-03-03 12:00:00,123 - metric_name: {name}, elapsed: {sum(durations)}, "
            f"recent_elapsed_raw_parts: {durations}, recent_since_start_raw_parts: {starts}, "
            f"tags: {tags}, step_range: {range(min(steps), max(steps) + 1)}, world_info: "
            f"WorldInfo: TopoInfo(rank={rank}, dp_rank={dp}, ddp_rank=0, tp_rank=0, "
            f"pp_rank={stage}, local_rank={rank % 8}, ip='0.0.0.0', dp_size={DP}, ddp_size=1, "
            f"tp_size=1, pp_size={STAGES}, world_size={DP * STAGES}) "
            "TrainingInfo(role_id=0, trial_id=0, run_id=0) {}"
        )
    return lines


def saved(path, lines):
    text = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["timeline_run0_raw.log", "raw.log.gz"])
@pytest.mark.parametrize("tagged", [False, True])
def test_real_lines_become_a_trace(tmp_path, name, tagged):
    rows = play(STAGES, DP)
    path = saved(tmp_path / name, raw_lines(rows, tagged=tagged))
    importer, _, _ = find_files([path])
    assert importer.name == "ndtimeline"
    got = ndtimeline.read([path])
    n_fused = sum("send" in row[3] and "recv" in row[3] for row in rows)
    assert got.matched == len(rows) + n_fused
    assert got.unplaced == {}
    assert (got.trace.job.dp_size, got.trace.job.pp_size) == (DP, STAGES)
    assert got.trace.steps.tolist() == [0, 1, 2, 3]
    assert any(note.startswith(f"{2 * n_fused} sends and recvs") for note in got.notes)


def test_fused_calls_do_not_make_links_slow(tmp_path):
    rows = play(STAGES, DP, slow={(1, 2): 1.5})
    trace = ndtimeline.read([saved(tmp_path / "raw.log", raw_lines(rows))]).trace
    result = analyze(trace)
    assert result.discrepancy < 0.02
    worst = np.unravel_index(np.argmax(result.by_worker), result.by_worker.shape)
    assert worst == (2, 1)  # [stage, replica]
    transfers = np.isin(trace.kind, [kind for kind in OpKind if "send" in kind.label])
    assert transfers.any()


def test_a_level_job_has_no_straggler(tmp_path):
    trace = ndtimeline.read([saved(tmp_path / "raw.log", raw_lines(play(STAGES, DP)))]).trace
    result = analyze(trace)
    assert result.slowdown == pytest.approx(1, abs=0.01)
    assert result.discrepancy < 0.02


def test_lines_that_are_cut_off_are_counted(tmp_path):
    lines = raw_lines(play(STAGES, DP))
    cut = "2026 - metric_name: optimizer, elapsed: 1, recent_elapsed_raw_parts: [0.1], "
    cut += "recent_since_start_raw_parts: [17103"
    got = ndtimeline.read([saved(tmp_path / "raw.log", [*lines, cut])])
    assert got.unplaced == {"in lines that are cut off or have no step": 1}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("range(0, 4)", "range(0, 7)"),  # parts that cannot be dealt out
        ("range(0, 4)", "range(0, 4, 0)"),
        ("range(0, 4)", "range(0, 4, 00)"),
        ("range(0, 4)", f"range(0, {'9' * 25})"),  # more steps than len() can count
        ("tags: [{}", "tags: [{'_inner_global_step': 3}"),  # only one has its step
        ("recent_elapsed_raw_parts: [", "recent_elapsed_raw_parts: [nan, "),
        ("pp_rank", "stage"),
    ],
)
def test_lines_without_steps_or_places_have_no_operations(tmp_path, old, new):
    lines = [line.replace(old, new) for line in raw_lines(play(STAGES, DP, microbatches=5))]
    with pytest.raises(TraceError, match="has no NDTimeline metric that is known"):
        ndtimeline.read([saved(tmp_path / "raw.log", lines)])


def test_a_number_of_400_digits_is_refused(tmp_path):
    """Digits that a float cannot hold, without a point."""
    starts = "recent_since_start_raw_parts: ["
    lines = [line.replace(starts, f"{starts}{'9' * 400}") for line in raw_lines(play(STAGES, DP))]
    with pytest.raises(TraceError, match="a time should be a number of seconds"):
        ndtimeline.read([saved(tmp_path / "raw.log", lines)])


def test_only_the_steps_asked_for_are_kept(tmp_path):
    path = saved(tmp_path / "raw.log", raw_lines(play(STAGES, DP)))
    whole = ndtimeline.read([path]).trace
    some = ndtimeline.read([path], steps=frozenset({1, 3, 2**40})).trace
    expected = whole.select_steps([1, 3])
    assert some.steps.tolist() == [1, 3]
    for name in ("counts", "start", "end", "microbatch"):
        np.testing.assert_array_equal(getattr(some, name), getattr(expected, name))
    with pytest.raises(TraceError, match="has none of the steps asked for; it has 0 to 3"):
        ndtimeline.read([path], steps=frozenset({9}))
