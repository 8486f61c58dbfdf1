"""Three numbers for each pass and peer, held against the same job call by call."""

import time

import numpy as np
import pytest

import paceline.record as record
from paceline import analyze, load
from paceline.errors import TraceError
from paceline.graph import from_trace
from paceline.sources.recording.files import read_files
from paceline.trace import Columns, OpKind, arrange
from peer_jobs import runs, slow_gpu, tokens
from program_jobs import columns_of, trace_of_runs

FORWARD, BACKWARD, TENSOR = OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE, OpKind.TENSOR_COMM
PASSES = ("forward-compute", "backward-compute")


def summed(run):
    """The rows of a run with one compute and one collective for each pass of a worker."""
    workers = {}
    for row in sorted(run.rows, key=lambda row: row["issued"]):
        workers.setdefault((row["dp"], row["pp"]), []).append(row)
    return [row for rows in workers.values() for row in _of_worker(rows)]


def _of_worker(rows):
    out = []
    for label in PASSES:
        first = next(row for row in rows if row["kind"] == label)
        last = max(row["issued"] for row in rows if row["kind"] == label)
        inside = [row for row in rows if first["issued"] <= row["issued"] <= last]
        calls = [row["end"] - row["start"] for row in inside if row["kind"] == "tensor-comm"]
        end = max(row["end"] for row in inside)
        busy = end - first["start"] - sum(calls)
        launch = first["start"] + busy
        out.append(first | {"end": launch, "transfer": -1.0, "issued": len(out)})
        out.append(
            first
            | {"kind": "tensor-comm", "start": launch, "end": end, "microbatch": -1, "chunk": -1}
            | {"issued": len(out), "awaited": len(out), "seq": len(out) // 2}
            | {"transfer": len(calls) * min(calls)}
        )
    for row in rows:
        if row["kind"] not in (*PASSES, "tensor-comm"):
            out.append(row | {"issued": len(out), "transfer": -1.0})
            out[-1]["awaited"] = len(out) - 1 if row["awaited"] >= 0 else -1
    return out


def summed_columns(steps):
    lists = [summed(run) for run in steps]
    transfer = np.array([row["transfer"] for rows in lists for row in rows])
    given = columns_of(lists, drop=("part",), transfer=transfer)
    replica = given.dp
    return Columns(
        **{k: v for k, v in vars(given).items() if v is not None}
        | {"dp": replica // steps[0].peers, "peer": replica % steps[0].peers}
    )


def job(factor, **options):
    steps = runs("tensor-comm", factor, **options)
    return arrange(summed_columns(steps), None), trace_of_runs(steps)


def test_a_slow_gpu_is_named_and_s_is_that_of_the_single_calls():
    few, exact = (analyze(from_trace(trace)) for trace in job(slow_gpu))
    assert few.lasting.slowdown == pytest.approx(exact.lasting.slowdown, rel=0.02)
    assert few.slowdown == pytest.approx(exact.slowdown, rel=0.03)
    assert int(np.argmax(few.by_worker[0])) == 5
    assert few.discrepancy < 1e-9


def test_layers_that_wait_for_each_other_are_said():
    even, _ = job(lambda *_: 1.0)
    assert not any("waits within them" in text for text in even.warnings)
    few, exact = job(tokens(0.6), dp=1)
    (text,) = [text for text in few.warnings if "waits within them" in text]
    assert "each=True" in text
    share = float(text.partition("%")[0]) / 100
    s, true_s = (analyze(from_trace(trace)).slowdown for trace in (few, exact))
    assert s < true_s < s * (1 + share)


def test_the_share_of_waits_by_hand():
    """Two peers, two layers: each is late once, by 1 s of a pass of 8 s, and calls take 1 s."""

    def rows(dp, busy):
        return [
            {"kind": "forward-compute", "start": 0.0, "end": busy, "issued": 0, "transfer": -1.0},
            {"kind": "tensor-comm", "start": busy, "end": 8.0, "issued": 1, "transfer": 2.0},
            {"kind": "backward-compute", "start": 8.0, "end": 9.0, "issued": 2, "transfer": -1.0},
        ]

    table = [
        row
        | {"dp": 0, "pp": 0, "peer": peer, "seq": 0, "awaited": 1 if n == 1 else -1}
        | {"chunk": 0 if n != 1 else -1, "microbatch": 0 if n != 1 else -1}
        for peer in (0, 1)
        for n, row in enumerate(rows(0, 5.0))
    ]
    names = ("dp", "pp", "peer", "seq", "awaited", "chunk", "microbatch", "issued", "start")
    columns = Columns(
        **{name: np.array([row[name] for row in table]) for name in names},
        step=np.zeros(len(table), dtype=int),
        rank=np.array([row["peer"] for row in table]),
        kind=np.array([OpKind.from_label(row["kind"]) for row in table], dtype=np.int8),
        duration=np.array([row["end"] - row["start"] for row in table]),
        transfer=np.array([row["transfer"] for row in table]),
    )
    (text,) = [text for text in arrange(columns, None).warnings if "waits within them" in text]
    assert text.startswith("11% of the passes")  # 8 - 5 - 2 = 1 s of 9 s


@pytest.mark.parametrize(
    ("row", "seconds", "message"),
    [(0, 0.001, "no collectives within passes"), (1, 1e9, "longer than their duration")],
)
def test_wrong_transfers_are_refused(row, seconds, message):
    columns = summed_columns(runs("tensor-comm", slow_gpu))
    columns.transfer[row] = seconds
    with pytest.raises(TraceError, match=message):
        arrange(columns, None)


def call(recorder, took_ns):
    """A collective within the running pass, which lasts longer."""
    time.sleep(2e-9 * took_ns)
    recorder.called("tensor-comm", 0, took_ns)


def test_the_recorder_counts_calls_within_a_pass(tmp_path):
    with record.start(tmp_path, every=1, tp=1) as recorder:
        for step in range(2):
            with recorder.step(step):
                with recorder.op("forward-compute", microbatch=0):
                    for took in (3_000, 1_000, 2_000):
                        call(recorder, took)
                with recorder.op("backward-compute", microbatch=0):
                    call(recorder, 5_000)
                    recorder.launch("grads-reduce-scatter").done()
                with recorder.op("optimizer"):
                    pass
    (file,) = read_files(tmp_path)
    kinds = [file.meta["kinds"][code] for code in file.ops["kind"]][: len(file.ops) // 2]
    assert kinds[:3] == ["forward-compute", "tensor-comm", "backward-compute"]
    inner = file.ops[file.ops["transfer"] >= 0]
    assert inner["transfer"].tolist() == 2 * [3 * 1_000, 5_000]
    assert (inner["end_ns"] - inner["start_ns"]).tolist() == 2 * [6_000, 5_000]
    assert (inner["awaited"] == inner["issued"]).all()
    # The scatter was launched behind the call that came before it.
    assert kinds.index("grads-reduce-scatter") > len(kinds) - kinds[::-1].index("tensor-comm") - 1


def test_steps_with_and_without_counts_in_one_file(tmp_path):
    with record.start(tmp_path, every=1) as recorder:
        for step in range(4):
            with recorder.step(step):
                with recorder.op("forward-compute", microbatch=0):
                    if step % 2:
                        call(recorder, 1_000)
                with recorder.op("backward-compute", microbatch=0):
                    pass
    (file,) = read_files(tmp_path)
    assert sorted(file.steps.tolist()) == [0, 1, 2, 3]
    assert sorted(load(tmp_path).steps.tolist()) in ([0, 2], [1, 3], [0, 1, 2, 3])
