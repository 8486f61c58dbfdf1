"""NCCL Inspector's files for Prometheus, as lines; its own writer is in ``real/``."""

import gzip
import json
from pathlib import Path

import pytest

from paceline.cli.main import run
from paceline.detect.mean_waits import mean_waits
from paceline.errors import TraceError
from paceline.sources import nccl_metrics
from paceline.sources.call_logs.files import load_call_log


def lines(gpu: int, us: float, *, name="dp", ranks=4, nodes=1, call="AllReduce", job="7") -> str:
    labels = (
        f'version="v5.1",slurm_job_id="{job}",node="n0",gpu="GPU{gpu}",comm_name="{name}",'
        f'n_nodes="{nodes}",nranks="{ranks}",collective="{call}",message_size="4-5MB",'
        'algo_proto="RING_LL"'
    )
    return (
        f"nccl_bus_bandwidth_gbs{{{labels}}} {5000 / us:.6g}\n"
        f"nccl_collective_exec_time_microseconds{{{labels}}} {us:.6g}\n"
    )


def saved(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"nccl_inspector_metrics_gpu-{n}.prom" for n in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def four(folder: Path, *times_us: float, **more) -> list[Path]:
    return saved(folder, *(lines(gpu, us, **more) for gpu, us in enumerate(times_us)))


def test_the_shortest_mean_is_the_late_gpu(tmp_path):
    result = mean_waits(nccl_metrics.read(four(tmp_path, 100, 160, 62, 104))[0])
    assert not result.waits  # 62, 100, 104, 160: the others are as far apart
    result = mean_waits(nccl_metrics.read(four(tmp_path, 100, 108, 62, 104))[0])
    ((wait,), (who,)) = result.waits, result.who
    assert (who.name, wait.late_us, wait.others_us) == ("GPU2", 62, 104)


@pytest.mark.parametrize("call", ["Broadcast", "Reduce"])
def test_a_root_may_end_early(tmp_path, call):
    result = mean_waits(nccl_metrics.read(four(tmp_path, 10, 100, 101, 102, call=call))[0])
    assert (result.n_judged, result.waits) == (0, ())


def test_a_name_may_hold_quotes_and_commas(tmp_path):
    name = 'a "b", c="d'
    means, _ = nccl_metrics.read(saved(tmp_path, lines(0, 5, name=name)))
    assert means[0].bucket.communicator == name


def test_means_that_stand_twice_are_left_out(tmp_path):
    texts = [lines(gpu, us) * (1 + (gpu == 1)) for gpu, us in enumerate((50, 100, 100, 100))]
    means, notes = nccl_metrics.read(saved(tmp_path, *texts))
    assert len(means) == 3
    assert notes[0].startswith("1 means were left out: their communicators have one name")
    assert mean_waits(means).n_judged == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines(0, 5)[:-9], "ends within a line"),
        (lines(0, 5) + "node_load1 3\n", "line 3 is no line of NCCL Inspector"),
        (lines(0, 5).replace('nranks="4"', 'nranks="four"'), "nranks='four', which is no count"),
        (lines(0, 5).replace('node="n0",', ""), "line 1 lacks the label node"),
        (lines(0, 5).replace("} 5\n", "} nan\n"), "finite and not negative"),
        (lines(0, 5).replace("} 5\n", "} fast\n"), "has no number: 'fast'"),
        (lines(0, 5) + lines(0, 5, job="8"), "Slurm's job 8, the first line of 7"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        nccl_metrics.read(saved(tmp_path, text))


def test_a_file_packed_with_gzip_is_read_whole(tmp_path):
    """One read of a gzip stream gives less than the file: here 1.7 MB of text."""
    text = "".join(lines(0, 5 + n, name=f"{n}-{n * 7919}") for n in range(4000))
    path = tmp_path / "nccl_inspector_metrics_gpu-0.prom"
    path.write_bytes(gzip.compress(text.encode()))
    means, notes = nccl_metrics.read([path])
    assert (len(means), notes) == (4000, [])
    assert means[-1].time_us == 4004


def test_files_of_two_jobs_or_twice_of_a_gpu_are_refused(tmp_path):
    with pytest.raises(TraceError, match=r"is of Slurm's job 8, .* of 7; give files of one job"):
        nccl_metrics.read(saved(tmp_path, lines(0, 5), lines(1, 5, job="8")))
    copies = [tmp_path / "a", tmp_path / "b"]
    for copy in copies:
        copy.write_text(lines(0, 5))
    with pytest.raises(TraceError, match=r"GPU0 of n0 is in .* and in"):
        nccl_metrics.read(copies)


def test_the_command_and_the_door(tmp_path, capsys):
    paths = four(tmp_path, 62, 100, 101, 102)
    assert run(["detect", "--collectives", *map(str, paths), "--json"]) == 0
    assert '"kind": "mean-waits"' in capsys.readouterr().out
    (tmp_path / "calls.csv").write_text("rank,time_s,op,size,communicator\n0,0.5,a,8,dp\n")
    with pytest.raises(TraceError, match="give such files alone to paceline detect --collectives"):
        load_call_log([tmp_path])


def test_metrics_over_otlp_are_refused_by_name(tmp_path):
    """As ``inspectorOtelAppendBody`` lays a request out (NVIDIA/nccl at 8898068)."""
    labels = {"gpu": "GPU0", "comm_name": "dp", "node": "n0", "nranks": "4", "message_size": "0B"}
    attributes = [{"key": k, "value": {"stringValue": v}} for k, v in labels.items()]
    point = {"attributes": attributes, "timeUnixNano": "1795245033000000000", "asDouble": 900.5}
    metric = {"name": "nccl_collective_exec_time_microseconds", "gauge": {"dataPoints": [point]}}
    scope = {"scope": {"name": "nccl-inspector"}, "metrics": [metric]}
    request = {"resourceMetrics": [{"resource": {"attributes": []}, "scopeMetrics": [scope]}]}
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(request) + "\n")
    with pytest.raises(TraceError, match=r"Inspector's metrics over OTLP, .*_OTEL_EXPORT=0"):
        load_call_log([path])
