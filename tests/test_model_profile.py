import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import requires
from paceline.errors import ModelError, OutputError
from paceline.model import profile as module
from paceline.model.cluster_presets import cluster_preset
from paceline.model.costs import CostModel
from paceline.model.llm import LLM
from paceline.model.operators import Operator
from paceline.model.plan import Plan
from paceline.model.profile import OperatorProfile, Timing, load_profile, save_profile
from paceline.model.profile_cost import (
    cluster_from_profile,
    cost_from_profile,
    one_of_batch,
    operator_class,
    profile_cost,
)


def timing(op: Operator, seconds: float) -> Timing:
    return Timing(operator=op, seconds=seconds, spread=0.01, repeats=7)


def norm(size: float) -> Operator:
    return Operator("norm-mlp", "memory", 0.0, size)


def product(m: int, n: int, k: int, precision: str = "bf16") -> Operator:
    return Operator("qkv", "gemm", 2.0 * m * n * k, 1.0, m, n, k, precision=precision)


def attention(size: float, intensity: float) -> Operator:
    return Operator("core-attention", "attention", size * intensity, size)


TIMINGS = (
    timing(norm(1e6), 1e-5),  # 1e11 byte/s
    timing(norm(4e6), 1e-5),  # 4e11
    # 1e12 FLOP/s whatever the shape, so any interpolation must give that
    *(
        timing(product(m, n, k), 2e-12 * m * n * k)
        for m in (1024, 4096)
        for n in (1024, 4096)
        for k in (1024, 4096)
    ),
    timing(attention(1e6, 100), 1e-4),  # 1e12 FLOP/s
    timing(attention(1e6, 400), 1e-4),  # 4e12
)


def make(**changes: Any) -> OperatorProfile:
    fields: dict[str, Any] = {
        "device": "NVIDIA A100-SXM4-80GB",
        "device_kind": "cuda",
        "memory_bytes": 79.2 * 2**30,
        "processors": 108,
        "torch": "2.13.0+cu130",
        "cuda": "13.0",
        "driver": "580.1",
        "date": "2026-11-21T00:00:00+00:00",
        "precision": "bf16",
        "launch_s": 6e-6,
        "peak_flops": 2.5e14,
        "memory_bandwidth": 1.7e12,
        "shapes": {"hidden": (1024, 4096), "tp": (1,)},
        "timings": TIMINGS,
    }
    return OperatorProfile(**(fields | changes))


def flat(op: Operator) -> float:
    """A roofline of 1e12 FLOP/s and 1e12 byte/s."""
    return max(op.flops, op.bytes) / 1e12


# Interpolation.


def test_a_measured_shape_costs_what_was_measured() -> None:
    cost = profile_cost(make(), flat)
    for each in TIMINGS:
        assert cost(each.operator) == pytest.approx(each.seconds)
    assert cost.outside == []


def test_rates_are_interpolated_in_logarithms() -> None:
    cost = profile_cost(make(), flat)
    # halfway in log2 between 1e11 and 4e11 byte/s
    assert cost(norm(2e6)) == pytest.approx(2e6 / 2e11, rel=0.02)
    assert cost(attention(1e6, 200)) == pytest.approx(2e8 / 2e12, rel=0.02)
    assert cost(product(2048, 3072, 1500)) == pytest.approx(2e-12 * 2048 * 3072 * 1500)
    assert cost.outside == []


def test_any_norm_and_any_linear_layer_is_one_class() -> None:
    assert operator_class(norm(1)) == operator_class(norm(1)._replace(name="norm-final"))
    assert operator_class(product(1, 1, 1)._replace(name="mlp-up-wgrad")) == "product-wgrad"
    assert operator_class(product(1, 1, 1)._replace(name="kv-down")) == "product"
    assert operator_class(Operator("shared-activation-backward", "memory", 0, 1)) == (
        "activation-backward"
    )


def test_experts_cost_as_many_products() -> None:
    cost = profile_cost(make(), flat)
    one = product(2048, 2048, 2048)
    eight = one._replace(batch=8, flops=8 * one.flops, bytes=8 * one.bytes, kernels=8)
    assert one_of_batch(eight) == one
    assert cost(eight) == pytest.approx(8 * cost(one))


def test_beyond_the_range_the_roofline_is_scaled_and_it_says_so() -> None:
    cost = profile_cost(make(), flat)
    # 4e6 bytes took 1e-5 s, the roofline says 4e-6: 2.5 times as long
    assert cost(norm(4e7)) == pytest.approx(2.5 * 4e7 / 1e12)
    assert cost.outside == ["norm: bytes 4e+07 (profiled: 1e+06 to 4e+06)"]
    cost(norm(4e7))
    cost(norm(4e8))
    cost(product(1024, 1024, 128))
    assert cost.outside == [
        "norm: bytes 4e+07 to 4e+08 (profiled: 1e+06 to 4e+06)",
        "product: k 128 (profiled: 1,024 to 4,096)",
    ]
    cost.reset()
    assert cost.outside == []
    cost(norm(4e7))  # known by now, and noted all the same
    assert len(cost.outside) == 1


def test_unknown_operators_and_precisions_are_scaled_by_their_like() -> None:
    cost = profile_cost(make(), flat)
    assert cost(Operator("rotary", "memory", 0.0, 4e6)) == pytest.approx(1e-5)
    assert cost(product(1024, 1024, 1024, "fp8")) == pytest.approx(2e-12 * 1024**3)
    assert cost.outside == ["product in fp8 (profiled: bf16)", "rotary (not profiled)"]


def test_a_part_without_any_timing_costs_the_roofline() -> None:
    cost = profile_cost(make(timings=TIMINGS[:2]), flat)
    assert cost(product(1024, 1024, 1024)) == flat(product(1024, 1024, 1024))
    assert cost.outside == ["product (not profiled)"]


# The file.


def test_the_file_holds_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "a100.profile.json"
    save_profile(make(left_out=("loss: needs about 90 GiB",)), path)
    back = load_profile(path)
    assert replace(back, path="") == make(left_out=("loss: needs about 90 GiB",))
    assert back.path == str(path)
    with pytest.raises(OutputError, match="exists already"):
        save_profile(make(), path)
    save_profile(make(), path, force=True)
    assert load_profile(path).left_out == ()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def damaged(path: Path, change: Any) -> str:
    """The message about a file in which ``change`` has changed the mapping."""
    save_profile(make(), path, force=True)
    mapping = json.loads(path.read_text())
    change(mapping)
    path.write_text(json.dumps(mapping))
    with pytest.raises(ModelError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda m: m.pop("format"), "no operator profile"),
        (lambda m: m.update(version=0), "its version is 0"),
        (lambda m: m.update(version=99), "its version is 99 and this Paceline reads 1"),
        (lambda m: m.pop("device"), "device is missing"),
        (lambda m: m.update(device=7), "device must be a text, not 7"),
        (lambda m: m.update(device_kind="tpu"), "device_kind must be one of cuda, cpu"),
        (lambda m: m.update(precision="int4"), "precision must be one of fp32"),
        (lambda m: m.update(peak_flops=float("nan")), "peak_flops must be a number > 0, not nan"),
        (lambda m: m.update(memory_bandwidth="fast"), "memory_bandwidth must be a number > 0"),
        (lambda m: m.update(launch_s=-1), "launch_s must be a number >= 0, not -1"),
        (lambda m: m.update(processors=True), "processors must be a whole number >= 1"),
        (lambda m: m.update(timings=[]), "timings is empty"),
        (lambda m: m.update(timings={}), "timings must be a list"),
        (lambda m: m["timings"].append(3), r"timings[12] must be a mapping, not 3"),
        (lambda m: m["timings"][1].pop("seconds"), r"timings[1].seconds is missing"),
        (lambda m: m["timings"][1].update(seconds=0), r"timings[1].seconds must be a number > 0"),
        (lambda m: m["timings"][0].update(bytes=1e400), r"timings[0].bytes must be a number"),
        (lambda m: m["timings"][2].update(m=0), r"timings[2] is a product without m, n and k"),
        (lambda m: m["timings"][2].update(part="io"), r"timings[2].part must be one of gemm"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, change: Any, what: str) -> None:
    assert what in damaged(tmp_path / "x.json", change)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\x00", b"[1, 2]", b"[" * 100_000, b"null", b'{"format": 1}']
)
def test_what_is_no_profile_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"x\.json: .*profile"):
        load_profile(path)


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    save_profile(make(), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="is it cut off"):
        load_profile(path)


def test_no_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ModelError, match=rf"{path}: cannot be read"):
            load_profile(path)


# Whose profile it is.


@pytest.mark.parametrize(
    ("device", "gib", "preset", "same"),
    [
        ("NVIDIA A100-SXM4-80GB", 79.2, "a100-80g", True),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-80g", False),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100-40g", True),
        ("NVIDIA A100 80GB PCIe", 79.2, "a100-80g", False),
        ("NVIDIA H100 80GB HBM3", 79.1, "h100", True),
        ("NVIDIA H200", 139.8, "h100", False),
        ("NVIDIA H200", 139.8, "h200", True),
        ("Tesla V100-SXM2-32GB", 31.7, "v100-32g", True),
        ("NVIDIA B200", 178.4, "gb200", False),
        ("NVIDIA B200", 178.4, "b200", True),
        ("AMD Instinct MI300X", 191.7, "mi300x", True),
    ],
)
def test_the_gpu_is_compared(device: str, gib: float, preset: str, same: bool) -> None:
    profile = make(device=device, memory_bytes=gib * 2**30, torch="1")
    found = [text for text in profile.mismatches(cluster_preset(preset)) if "torch" not in text]
    assert (found == []) == same
    if found:
        assert device in found[0]


def test_another_torch_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_preset("a100-80g")
    for installed, n in (("2.13.0+cpu", 0), ("2.12.1", 1), ("", 0)):
        monkeypatch.setattr(module, "_installed_torch", lambda version=installed: version)
        found = make().mismatches(cluster)
        assert len(found) == n
    monkeypatch.setattr(module, "_installed_torch", lambda: "2.12.1")
    assert "2.13.0+cu130, but 2.12.1 is installed" in make().mismatches(cluster)[0]


def test_a_cost_comes_with_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_installed_torch", lambda: "")
    path = tmp_path / "p.json"
    save_profile(make(), path)
    cost, warned = cost_from_profile(path, cluster_preset("h100"))
    assert cost(norm(1e6)) == pytest.approx(1e-5)
    assert len(warned) == 1
    assert str(path) in warned[0]
    assert "H100" in warned[0]
    assert cost_from_profile(path, cluster_preset("a100-80g"))[1] == []


def test_the_machine_of_the_profile_is_a_cluster() -> None:
    cluster = cluster_from_profile(make())
    assert make(torch="9").mismatches(cluster)[1:] == []
    assert cluster.gpu.peak("bf16") == 2.5e14
    assert cluster.efficiency.launch_s == 6e-6
    assert cluster_from_profile(make(device_kind="cpu")).efficiency.launch_s == 0
    with pytest.raises(ModelError, match="no fp8"):
        cluster.gpu.peak("fp8")


# With real operators.


def test_the_necessary_operators_are_those_a_prediction_asks_for() -> None:
    from paceline.model.profiler import Shapes, made_up, necessary

    gpt, rotary = made_up(128, 64, 256)
    cases = necessary(Shapes(models=(gpt, rotary), tp=(1, 2, 64), precision="fp32"))
    names = {operator_class(case.op) for case in cases}
    assert {"product", "product-dgrad", "product-wgrad", "norm", "loss", "optimizer"} <= names
    assert {"core-attention", "core-attention-backward", "rotary", "embedding"} <= names
    work = [case.op.flops + case.op.bytes for case in cases]
    assert work == sorted(work)
    unfused = necessary(Shapes(models=(gpt,), precision="fp32", flash=False))
    assert "core-softmax" in {operator_class(case.op) for case in unfused}
    with pytest.raises(ModelError, match="heads 2 not divisible by tp 64"):
        necessary(Shapes(models=(gpt,), tp=(64,)))
    with pytest.raises(ModelError, match="multiple of 64"):
        made_up(100, 64)


def test_fp8_is_not_timed() -> None:
    from paceline.model.profiler import Shapes, made_up, take_profile

    with pytest.raises(ModelError, match="profile bf16"):
        take_profile(Shapes(models=made_up(64, 64), precision="fp8"))


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.model import profiler

    def fail(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(profiler.importlib, "import_module", fail)
    with pytest.raises(ModelError, match=r"No module named 'torch'.*pip install .*\[profile\]"):
        profiler.import_torch()


@pytest.fixture(scope="module")
def torch() -> Any:
    requires.installed("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(threads)


def test_a_profile_of_this_cpu_predicts_a_step(torch: Any, tmp_path: Path) -> None:
    from paceline.model.profiler import Effort, Shapes, made_up, take_profile

    models = tuple(llm for width in (64, 128) for llm in made_up(width, 32, 256))
    shapes = Shapes(models=models, micro_batch=(1, 2), precision="fp32")
    seen: list[tuple[int, int]] = []
    effort = Effort(warmup=1, repeats=3, most=3, operator_s=0.0)
    taken = take_profile(shapes, "cpu", effort, lambda done, total: seen.append((done, total)))
    assert taken.left_out == ()
    assert seen[-1] == (len(taken.timings), len(taken.timings))
    assert taken.torch == torch.__version__
    path = tmp_path / "cpu.profile.json"
    save_profile(taken, path)

    profile = load_profile(path)
    cluster = cluster_from_profile(profile)
    cost, warned = cost_from_profile(path, cluster)
    assert warned == []
    llm = LLM(name="between", layers=3, hidden=96, heads=2, vocab=256, seq_len=32)
    plan = Plan(micro_batch=2, global_batch=2, precision="fp32")
    costs = CostModel(llm, cluster, cost).costs(plan)
    assert cost.outside == []
    assert 0 < costs.forward_s.sum() < 10
    assert costs.backward_s.sum() > 0
    assert costs.optimizer_s.sum() > 0
    wide = LLM(name="wide", layers=3, hidden=1024, heads=16, vocab=256, seq_len=32)
    CostModel(wide, cluster, cost).costs(plan)
    assert any(text.startswith("product: n ") for text in cost.outside)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("flash", [True, False])
def test_every_operator_of_every_architecture_runs(torch: Any, precision: Any, flash: bool) -> None:
    from paceline.model.blocks import LatentAttention, MoE
    from paceline.model.profiler import Effort, Shapes, take_profile

    base: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 128, "seq_len": 16}
    llama: dict[str, Any] = {
        "gated": True,
        "norm": "rmsnorm",
        "positions": "rotary",
        "tied": False,
        "bias": False,
    }
    latent = LatentAttention(q_rank=32, kv_rank=16, nope_dim=16, rope_dim=8, value_dim=16)
    moe = MoE(experts=4, top_k=2, ffn=32, shared_experts=1)
    models = (
        LLM(name="gpt", **base),
        LLM(name="grouped", kv_heads=2, qk_norm=True, **base, **llama),
        LLM(name="mixture", moe=moe, latent=latent, **base, **llama),
    )
    shapes = Shapes(models=models, tp=(1, 2), precision=precision, flash=flash)
    effort = Effort(warmup=0, repeats=2, most=2, operator_s=0.0)
    profile = take_profile(shapes, "cpu", effort)
    assert profile.left_out == ()
    cost = profile_cost(profile, flat)
    for llm in models:
        plan = Plan(global_batch=1, precision=precision, flash=flash)
        CostModel(llm, cluster_from_profile(profile), cost).costs(plan)
    assert cost.outside == []


def test_time_that_is_over_leaves_the_rest_out(torch: Any) -> None:
    from paceline.model.profiler import Effort, Shapes, made_up, take_profile

    with pytest.raises(
        ModelError, match=r"nothing could be measured: \d+ operators: 0 s were over"
    ):
        take_profile(Shapes(models=made_up(64, 32), precision="fp32"), "cpu", Effort(total_s=0.0))


def test_what_does_not_fit_is_left_out(torch: Any) -> None:
    from paceline.model.profile_operators import Case, Tensors
    from paceline.model.profiler import Clock, Effort, made_up, measure

    gpt = made_up(64, 32)[0]
    case = Case(Operator("norm-mlp", "memory", 0.0, 1e12), gpt, Plan(global_batch=1))
    clock = Clock(torch, "cpu", Effort())
    assert measure(case, Tensors(torch, "cpu", "fp32"), clock, 1e9) == (
        "norm-mlp: needs about 3725 GiB"
    )


def test_a_gpu_is_timed_by_events_around_queued_runs() -> None:
    """The clock's arithmetic and order of calls; no GPU is needed."""
    from types import SimpleNamespace

    from paceline.model.profiler import Clock, Effort

    calls: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("wait")

        def elapsed_time(self, _: "Event") -> float:
            return 8.0  # milliseconds

    cuda = SimpleNamespace(
        Event=Event,
        synchronize=lambda: calls.append("synchronize"),
        _sleep=lambda cycles: calls.append("hold"),
    )
    clock = Clock(SimpleNamespace(cuda=cuda), "cuda", Effort(repeats=2, most=2, warmup=1))
    thunks = [lambda: calls.append("run")] * 2
    assert clock.samples(thunks) == [4e-3, 4e-3]
    one = ["hold", "record", "run", "run", "record", "wait"]
    assert calls == ["run", "run", "synchronize", *one, *one]


def test_torch_is_loaded_when_a_profile_is_taken_not_before() -> None:
    modules = "paceline.cli.profile, paceline.model.profiler, paceline.model.profile_cost"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
