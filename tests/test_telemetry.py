"""What GPUs say of themselves, as nvidia-smi and dcgm-exporter write it.

The forms of lines are those that users have published: nvidia-smi's of a driver 430 (2019) and of
an H100's (2026), dcgm-exporter's page as its own tests have it (NVIDIA/dcgm-exporter 00d6d34).
"""

import json

import pytest

from paceline.cli.main import run
from paceline.cli.telemetry import tell_beside
from paceline.detect.gpu_health import gpu_health
from paceline.errors import TraceError
from paceline.sources.telemetry.files import load_telemetry
from paceline.sources.telemetry.table import Gpu

HEAD = (
    "timestamp, index, power.draw [W], temperature.gpu, clocks.current.sm [MHz], "
    "utilization.gpu [%], ecc.errors.uncorrected.volatile.total, "
    "clocks_event_reasons.hw_thermal_slowdown, clocks_event_reasons.sw_power_cap\n"
)


def smi(folder, host="node1", slow=3, gpus=8, samples=20, at=None):
    """A file in which one GPU is hot from sample 10 on."""
    text = HEAD
    for n in range(samples):
        for gpu in range(gpus):
            hot = gpu == slow and n >= 10
            clock, heat = (1095, "Active") if hot else (1980, "Not Active")
            text += (
                f"2026/03/07 00:{n:02d}:37.071, {gpu}, 676.78 W, {91 if hot else 64}, {clock} MHz,"
                f" 98 %, [N/A], {heat}, Active\n"
            )
    path = folder / f"{host}.csv"
    path.write_text(text)
    return path


def range_json(path, field, rows):
    """Prometheus' answer to a range query: rows of (host, gpu, values)."""
    result = [
        {
            "metric": {"__name__": field, "gpu": gpu, "Hostname": host, "UUID": f"GPU-{gpu}"},
            "values": [[1772842837 + 30 * n, str(value)] for n, value in enumerate(values)],
        }
        for host, gpu, values in rows
    ]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    path.write_text(json.dumps(answer))
    return path


def test_a_hot_gpu_is_told_with_what_the_others_do(tmp_path):
    telemetry = load_telemetry([smi(tmp_path)])
    assert len(telemetry.gpus) == 8
    middle = telemetry.of[Gpu("node1", "0"), "sm_clock_mhz"].time_s[10]
    (health,) = gpu_health(telemetry, begin_s=middle)
    assert health.gpu == Gpu("node1", "3")
    told = {sign.metric: sign for sign in health.signs}
    assert set(told) == {"hw_thermal_slowdown", "sm_clock_mhz", "temperature_c"}
    clock = told["sm_clock_mhz"]
    assert (clock.value, clock.others, clock.before) == (1095, 1980, 1980)
    assert told["hw_thermal_slowdown"].value == 1.0
    assert "SM clock 1,095 MHz (others 1,980; before 1,980)" in health.explain()


def test_what_all_gpus_do_is_no_sign(tmp_path):
    assert gpu_health(load_telemetry([smi(tmp_path, slow=None)])) == ()


def test_masks_of_reasons_are_told_apart(tmp_path):
    path = tmp_path / "node2.csv"
    path.write_text(
        "timestamp, index, clocks_throttle_reasons.active\n"
        "2019/08/23 14:54:47.307, 0, 0x0000000000000044\n"
        "2019/08/23 14:54:47.307, 1, 0x0000000000000004\n"
    )
    (health,) = gpu_health(load_telemetry([path]))
    assert [sign.metric for sign in health.signs] == ["hw_thermal_slowdown"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "index, clocks.sm, timestamp\n0\n", "line 2: 1 columns, the header 3"),
        (
            "a.csv",
            f"timestamp, index, clocks.sm\n{'5' * 140_000}, 0, 5\n",
            "is no CSV of nvidia-smi",
        ),
        ("a.txt", 'DCGM_FI_DEV_SM_CLOCK{gpu="0"} fast\n', "has the value 'fast', no number"),
        ("a.txt", 'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0"} -inf\n', "value '-inf', no number"),
    ],
)
def test_damaged_lines_are_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=message):
        load_telemetry([tmp_path / name])


def test_a_damaged_mask_is_left_out(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "timestamp, index, clocks_event_reasons.active\n"
        "2026/01/01 00:00:00.000, 0, 0xZZ\n"
        "2026/01/01 00:00:01.000, 0, 0x0000000000000008\n"
    )
    samples = load_telemetry([path]).of[Gpu("a", "0"), "hw_slowdown"]
    assert samples.value.tolist() == [1.0]


def test_an_idle_gpu_is_not_called_slow(tmp_path):
    path = tmp_path / "node3.csv"
    rows = [f"2026/03/07 00:20:37.071, {g}, {c} MHz, {u} %" for g, c, u in
            ((0, 1980, 99), (1, 345, 0), (2, 1980, 98))]  # fmt: skip
    head = "timestamp, index, clocks.current.sm [MHz], utilization.gpu [%]"
    path.write_text("\n".join([head, *rows]))
    (health,) = gpu_health(load_telemetry([path]))
    assert [sign.metric for sign in health.signs] == ["utilization"]


def test_counters_of_dcgm_count_what_came_and_survive_a_reset(tmp_path):
    blank = 9223372036854775794
    rows = [("n1", "0", [5, 5, 5]), ("n1", "1", [7, 9, 1, 3]), ("n1", "2", [blank] * 3)]
    path = range_json(tmp_path / "ecc.json", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", rows)
    telemetry = load_telemetry([path])
    assert telemetry.gpus == (Gpu("n1", "0"), Gpu("n1", "1"))
    (health,) = gpu_health(telemetry)
    assert health.gpu.number == "1"
    assert health.signs[0].value == 4
    assert "4 uncorrectable ECC errors" in health.explain()


def test_time_throttled_is_a_share_of_the_window(tmp_path):
    """Nanoseconds, as dcgm_fields.h of DCGM says; 64-bit, so 2**31 of them are no blank value."""
    half = [n * 15_000_000_000 for n in range(5)]  # 15 s of each 30
    blank = 9223372036854775794
    rows = [("n1", "0", half), ("n1", "1", [0] * 5), ("n2", "0", [0] * 5), ("n3", "0", [blank] * 5)]
    path = range_json(tmp_path / "t.json", "DCGM_FI_DEV_THERMAL_VIOLATION", rows)
    (health,) = gpu_health(load_telemetry([path]))
    assert health.explain() == "n1 GPU 0: throttled by heat 50% of the time (others 0%)"


def test_a_page_without_hosts_and_with_blanks(tmp_path):
    """As dcgm-exporter 2.0 to 4.8 answer in their READMEs: the memory's temperature is blank."""
    page = (
        'DCGM_FI_DEV_SM_CLOCK{gpu="0", UUID="GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"} 139\n'
        'DCGM_FI_DEV_MEMORY_TEMP{gpu="0", UUID="GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"} '
        "9223372036854775794\n"
    )
    (tmp_path / "node4.txt").write_text(page)
    telemetry = load_telemetry([tmp_path / "node4.txt"])
    assert list(telemetry.of) == [(Gpu("node4", "0"), "sm_clock_mhz")]


def test_a_page_of_the_exporter_is_one_sample(tmp_path):
    path = tmp_path / "metrics.txt"
    path.write_text(
        "# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).\n"
        "# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"
        'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-6",device="nvidia0",Hostname="a"} 1980\n'
        'DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-7",device="nvidia1",Hostname="a"} 1200\n'
        'DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-7",device="nvidia1",Hostname="a"} 79\n'
    )
    (health,) = gpu_health(load_telemetry([path]))
    assert [sign.metric for sign in health.signs] == ["xid", "sm_clock_mhz"]
    assert "XID 79" in health.explain()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is no telemetry"),
        ("a,b\n1,2\n", "is no telemetry"),
        ("clocks.current.sm [MHz]\n1980 MHz\n", "lacks timestamp and index"),
        ("timestamp, index, clocks.sm [MHz]\n2026-03-07, 0, 1 MHz\n", "line 2: '2026-03-07' is no"),
        ("timestamp, index, clocks.sm [MHz]\n2026/03/07 00:00:00.000, 0\n", "line 2: 2 columns"),
        ("#Entity   SMCLK\nGPU 0     1980\n", "of dcgmi dmon, which writes no times"),
        ('{"x": "DCGM_FI_DEV_SM_CLOCK"}', "lacks data.result"),
        ('{"DCGM_FI_DEV": ', "is no JSON"),
        ('DCGM_FI_DEV_FB_USED{gpu="0"} 5\n', "has no field that is known"),
    ],
)
def test_what_is_no_telemetry_is_refused_by_name(tmp_path, text, problem):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=problem):
        load_telemetry([path])


def test_the_command_names_gpus_and_windows(tmp_path, capsys):
    path = str(smi(tmp_path))
    assert run(["telemetry", path, "--begin", "2026-03-07T00:10"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("8 GPUs; 1 differ from the others\n  node1 GPU 3: hardware thermal")
    assert "local time" in shown.err
    assert run(["telemetry", path, "--end", "2026-03-07T00:10", "--gpu", "node1:0", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["judged"] == [
        {"host": "node1", "gpu": "0", "signs": [], "text": "node1 GPU 0: like the others"}
    ]
    assert run(["telemetry", path, "--gpu", "node1:9"]) == 2
    assert "such as node1:" in capsys.readouterr().err
    assert run(["telemetry", path, "--begin", "2027-01-01"]) == 2
    assert "the files have 2026-03-07T00:00:37+00:00 to" in capsys.readouterr().err
    assert run(["telemetry", path, "--begin", "noon"]) == 2


def test_detect_shows_it_beside_the_suspects(tmp_path, capsys):
    """A node address stands for its short name, too; without hosts all GPUs with a sign come."""
    telemetry = load_telemetry([smi(tmp_path)])
    hosts = tmp_path / "hosts.csv"
    hosts.write_text("rank,host,gpu\n0,node1.cluster,0\n3,node1.cluster,3\n")
    assert len(telemetry.gpus) == 8
    tell_beside([tmp_path / "node1.csv"], hosts, [3], as_json=False)
    assert capsys.readouterr().out.startswith("  telemetry: node1 GPU 3: hardware thermal slowdown")
    tell_beside([tmp_path / "node1.csv"], hosts, [0], as_json=True)
    assert json.loads(capsys.readouterr().out)["text"] == "node1 GPU 0: like the others"
    tell_beside([tmp_path / "node1.csv"], None, [0], as_json=False)
    shown = capsys.readouterr()
    assert "GPU 3" in shown.out
    assert "give --hosts to map ranks to GPUs" in shown.err


def test_detect_takes_it_with_a_fail_slow_only(tmp_path, capsys):
    path = smi(tmp_path)
    steps = tmp_path / "steps.csv"
    times = [1.0 + 0.001 * (n % 3) + 0.5 * (n >= 100) for n in range(200)]
    steps.write_text("step,duration_s\n" + "\n".join(f"{n},{s}" for n, s in enumerate(times)))
    assert run(["detect", str(steps), "--telemetry", str(path)]) == 0
    assert "telemetry: node1 GPU 3" in capsys.readouterr().out
    assert run(["detect", str(steps), "--hosts", "hosts.csv"]) == 2


def xpu_timer_json(path, slow=2, gpus=4, samples=12):
    """A range of xpu_timer's products: a fast bucket that the slow GPU leaves after 4 samples."""

    def labels(name, gpu, **more):
        common = {"local_rank": str(gpu), "pod_name": "worker-0", "ip": "10.0.0.1"}
        return {"__name__": name, **common, **more}

    def values(numbers):
        return [[1772842837 + 30 * n, str(value)] for n, value in enumerate(numbers)]

    result = []
    for gpu in range(gpus):
        fast = [410 + 0.01 * min(n, 3 if gpu == slow else n) for n in range(samples)]
        middle = [330 + 0.01 * n for n in range(samples)]
        for level, numbers in (("9", fast), ("7", middle)):
            metric = labels("XPU_TIMER_MM_KERNEL_FLOPS", gpu, operation="Matmul", level=level)
            result.append({"metric": metric, "values": values(numbers)})
        attention = labels("XPU_TIMER_MM_KERNEL_FLOPS", gpu, operation="FA", level="10")
        result.append({"metric": attention, "values": values([600 + gpu] * samples)})
        hang = labels("XPU_TIMER_COMMON_HANG", gpu)
        numbers = [0] * (samples - 1) + [int(gpu != slow)]
        result.append({"metric": hang, "values": values(numbers)})
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    path.write_text(json.dumps(answer))
    return path


def test_the_fastest_products_that_are_still_made(tmp_path, capsys):
    path = xpu_timer_json(tmp_path / "a.json")
    telemetry = load_telemetry([path])
    (health,) = gpu_health(telemetry)
    assert health.gpu == Gpu("worker-0", "2")
    (sign,) = health.signs
    assert (sign.metric, round(sign.value), round(sign.others)) == ("matmul_tflops", 330, 410)
    assert run(["telemetry", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "worker-0 GPU 2: fastest matrix products 330 TFLOPS (others 410)" in out
    others = "worker-0 GPU 0, worker-0 GPU 1, worker-0 GPU 3; none on worker-0 GPU 2"
    assert f"kernels hang on 3 of 4 GPUs: {others}" in err


def test_level_products_and_no_hang(tmp_path):
    telemetry = load_telemetry([xpu_timer_json(tmp_path / "a.json", slow=None)])
    assert gpu_health(telemetry) == ()
    told = load_telemetry([xpu_timer_json(tmp_path / "b.json", slow=None)]).notes
    assert len(told) == 1  # all hang at the end


def test_metrics_that_are_not_known_are_refused(tmp_path):
    path = tmp_path / "page.txt"
    path.write_text('XPU_TIMER_COLL_KERNEL_AVG_LATENCY{local_rank="1"} 370\n')
    with pytest.raises(TraceError, match="XPU_TIMER_COMMON_HANG"):
        load_telemetry([path])
