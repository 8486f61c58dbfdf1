"""Presets beside what their datasheets say in another way: clocks, whole nodes, hourly prices."""

import re

import pytest

from paceline.model.cluster_presets import CLUSTER_PRESETS, cluster_preset
from paceline.model.efficiency import EFFICIENCIES, Efficiency
from paceline.model.llm_presets import llm_preset

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "units", "clock_hz", "per_clock"),
    [
        # boost clock; FLOP per clock and SM (compute unit): vector fp32, tensor 16-bit
        ("v100-16g", 80, 1.53e9, {"fp32": 128, "fp16": 1024}),
        ("a100-80g", 108, 1.41e9, {"fp32": 128, "fp16": 2048, "bf16": 2048}),
        # whitepaper, table 9: 64 fp32 cores x 2 and 4 tensor cores of 128 FMA at fp16 (fp32 sums)
        ("rtx3090", 82, 1.695e9, {"fp32": 256, "fp16": 512, "bf16": 512}),
        ("mi300x", 304, 2.1e9, {"fp32": 256, "fp16": 2048, "bf16": 2048, "fp8": 4096}),
        ("mi355x", 256, 2.4e9, {"fp32": 256, "fp16": 4096, "bf16": 4096, "fp8": 8192}),
        ("mi350x", 256, 2.2e9, {"fp32": 256, "fp16": 4096, "bf16": 4096, "fp8": 8192}),
        # tensor cores at 1.83 GHz; its vector units at 1.98 GHz: 66.9 below
        ("gh200", 132, 1.83e9, {"fp16": 4096, "bf16": 4096, "fp8": 8192}),
        # tensor cores at 1.62 GHz; its vector units at 1.755 GHz
        ("h100-pcie", 114, 1.62e9, {"fp16": 4096, "bf16": 4096, "fp8": 8192}),
        ("h100", 132, 1.83e9, {"fp16": 4096, "bf16": 4096, "fp8": 8192}),
    ],
)
def test_peaks_are_units_times_clock(name, units, clock_hz, per_clock):
    gpu = cluster_preset(name).gpu
    assert gpu.sms == units
    for precision, flops in per_clock.items():
        assert gpu.peak(precision) == pytest.approx(units * clock_hz * flops, rel=0.005)
    assert set(gpu.peak_flops) == {*per_clock, "fp32"}


def test_the_vector_units_of_an_h100_run_faster():
    assert cluster_preset("h100").gpu.peak("fp32") == pytest.approx(132 * 1.98e9 * 256, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "gpus", "dense_pflops", "fp32_tflops", "sms"),
    [
        # of the whole system, half of what it prints "with sparsity"
        ("b200", 8, {"bf16": 18, "fp16": 18, "fp8": 36, "nvfp4": 72}, 600, 148),
        ("gb200", 72, {"bf16": 180, "fp16": 180, "fp8": 360, "nvfp4": 720}, 5760, 152),
        ("b300", 8, {"nvfp4": 108}, 600, 148),
        ("gb300", 72, {"nvfp4": 1080}, 5760, 152),
    ],
)
def test_blackwell_systems(name, gpus, dense_pflops, fp32_tflops, sms):
    gpu = cluster_preset(name).gpu
    for precision, peak in dense_pflops.items():
        assert gpu.peak(precision) * gpus == peak * 1e15
    assert gpu.peak("fp32") * gpus == fp32_tflops * 1e12
    assert gpu.sms == sms


#: GiB and TB/s of a GPU; GPUs of a node, GB/s of one GPU's links; adapters of a node, Gb/s of one.
MACHINES = {
    "v100-16g": (16, 0.9, 8, 6 * 25, 4, 100),
    "v100-32g": (32, 0.9, 16, 6 * 25, 8, 100),
    "a100-40g": (40, 1.555, 8, 12 * 25, 8, 200),
    "a100-80g": (80, 2.039, 8, 12 * 25, 8, 200),
    "a100-80g-4nic": (80, 2.039, 8, 12 * 25, 4, 200),
    "rtx3090": (24, 0.936, 4, 31.5, 1, 100),
    "h100": (80, 3.35, 8, 18 * 25, 8, 400),
    "h200": (141, 4.8, 8, 18 * 25, 8, 400),
    "b200": (1440 / 8, 64 / 8, 8, 18 * 50, 8, 400),
    "gb200": (186, 576 / 72, 72, 18 * 50, 72, 400),
    "b300": (270, 8, 8, 18 * 50, 8, 800),
    "gb300": (279, 576 / 72, 72, 18 * 50, 72, 800),
    "mi300x": (192, 5.3, 8, 7 * 64, 8, 400),
    "mi325x": (256, 6, 8, 7 * 64, 8, 400),
    "mi350x": (288, 8, 8, 7 * 76.8, 8, 400),
    "mi355x": (288, 8, 8, 7 * 76.8, 8, 400),
    "l40s": (48, 0.864, 4, 32, 2, 400),
    "h100-pcie": (80, 2, 4, 64, 2, 400),
    "gh200": (96, 4, 1, 900 / 2, 1, 400),
    "h200-nvl": (141, 4.8, 4, 900 / 2, 2, 400),
}


def test_every_preset_is_in_the_table():
    assert set(MACHINES) == set(CLUSTER_PRESETS)


@pytest.mark.parametrize("name", MACHINES)
def test_memory_links_and_network(name):
    memory, bandwidth, gpus, links, nics, gbit = MACHINES[name]
    cluster = cluster_preset(name)
    assert cluster.gpu.memory_bytes == memory * GIB
    assert cluster.gpu.memory_bandwidth == pytest.approx(bandwidth * 1e12)
    assert (cluster.node.gpus, cluster.node.bandwidth) == (gpus, links * 1e9)
    assert cluster.network.nics == nics
    assert cluster.network.nic_bandwidth == gbit * 1e9 / 8
    # NCCL, src/graph/tuning.cc, hwLat for the protocol Simple
    assert (cluster.node.latency_s, cluster.network.latency_s) == (3.4e-6, 14e-6)
    meshes = ("v100-16g", "mi300x", "mi325x", "mi350x", "mi355x")
    expected = (
        "pcie"
        if name in ("l40s", "rtx3090", "h100-pcie")
        else "mesh"
        if name in meshes
        else "switch"
    )
    assert cluster.node.topology == expected


@pytest.mark.parametrize("name", CLUSTER_PRESETS)
def test_a_price_is_that_of_the_machine_over_its_gpus(name):
    cluster = cluster_preset(name)
    if cluster.price_per_gpu_hour is None:
        assert "no public" in cluster.price_source
        return
    dollars, gpus = re.search(r"([\d.,]+) \$/h for ([\d,]+)", cluster.price_source).groups()
    per_gpu = float(dollars.replace(",", "")) / int(gpus.replace(",", ""))
    assert cluster.price_per_gpu_hour == pytest.approx(per_gpu, abs=0.006)


@pytest.mark.parametrize(
    ("name", "gemm", "gemm_fp8", "attention", "backward"),
    [
        # 0.93 x the best product of any shape (Bekman); attention over the peak in bf16;
        # fp8 times what MLPerf's rows lose (docs/accuracy.md)
        ("h100", 0.93 * 0.80, 0.93 * 0.71 * 0.842, 620 / 989.4, 530 / 989.4),
        ("h200", 0.93 * 0.80, 0.93 * 0.71 * 0.842, 620 / 989.4, 530 / 989.4),
        ("b200", 0.93 * 0.776, 0.93 * 0.708 * 0.822, 1350 / 2250, 1050 / 2250),
        ("gb200", 0.93 * 0.776, 0.93 * 0.708 * 0.822, 0.60, 0.47),
        ("b300", 0.93 * 0.776, 0.93 * 0.708 * 0.822, 0.68, 0.52),
        ("gb300", 0.93 * 0.776, 0.93 * 0.708, 0.68, 0.52),
        ("mi300x", 0.93 * 0.511, 0.93 * 0.511 * 0.49 / 0.58, 0.40, 0.30),
        ("mi325x", 0.93 * 0.60, 0.93 * 0.60 * 0.49 / 0.58, 0.40, 0.30),
        ("mi355x", 0.93 * 1565 / 2516.6, 0.93 * 1565 / 2516.6 * 0.49 / 0.58, 0.40, 0.30),
        ("v100-16g", 0.66, 0.70, 0.45, 0.35),
        ("a100-80g", 0.80, 0.70, 0.65, 0.55),
    ],
)
def test_shares_of_the_peak(name, gemm, gemm_fp8, attention, backward):
    efficiency = cluster_preset(name).efficiency
    assert efficiency.gemm == pytest.approx(gemm, abs=6e-4)
    assert efficiency.gemm_fp8 == pytest.approx(gemm_fp8, abs=6e-4)
    assert efficiency.attention == pytest.approx(attention, abs=0.01)
    assert efficiency.attention_backward == pytest.approx(backward, abs=0.01)
    assert efficiency.memory == (0.80 if name.startswith("mi3") else 0.85)
    assert set(EFFICIENCIES) <= set(CLUSTER_PRESETS)


def test_defaults_are_those_of_the_sources():
    """Each is named in the docstring of :class:`Efficiency`."""
    default = Efficiency()
    assert default.batched == 0.40
    assert (default.kernel_s, default.launch_s) == (2.5e-6, 8e-6)
    assert default.collective_s == 36e-6
    assert default.intra == pytest.approx(230 / 300, abs=0.005)
    assert (default.inter, default.partial, default.overlap) == (0.85, 1.0, 0.2)
    assert (default.fixed_s, default.compute) == (0.0, 1.0)


#: Tokens of a training sample, rows of the word embedding: each model's paper or config.json.
LENGTHS = {
    "gpt2-1.5b": (1024, 50257),
    "gpt3-175b": (2048, 50257),
    "megatron-1008b": (2048, 51200),
    "mt-nlg-530b": (2048, 50257),
    "opt-175b": (2048, 50272),
    "llama2-70b": (4096, 32000),
    "llama3-8b": (8192, 128256),
    "llama3.1-405b": (8192, 128256),
    "mixtral-8x7b": (4096, 32000),
    "mixtral-8x22b": (4096, 32768),
    "deepseek-v3": (4096, 129280),
    "qwen3-30b-a3b": (4096, 151936),
    "qwen3-235b-a22b": (4096, 151936),
    "gpt-oss-120b": (4096, 201088),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_samples_and_vocabularies(name):
    llm = llm_preset(name)
    assert (llm.seq_len, llm.vocab) == LENGTHS[name]


@pytest.mark.parametrize(
    ("family", "heads"),
    [
        ("gpt2-", [("124m", 12), ("355m", 16), ("774m", 20), ("1.5b", 25)]),
        (
            "gpt3-",
            [("125m", 12), ("350m", 16), ("760m", 16), ("1.3b", 16), ("2.7b", 32), ("6.7b", 32)],
        ),
        ("gpt3-", [("13b", 40), ("175b", 96)]),
        ("megatron-", [("1.7b", 24), ("3.6b", 32), ("7.5b", 32), ("18.4b", 48), ("22b", 64)]),
        ("megatron-", [("39.1b", 64), ("76.1b", 80), ("145.6b", 96), ("175b", 96)]),
        ("megatron-", [("310.1b", 128), ("529.6b", 128), ("1008b", 160)]),
        ("opt-", [("125m", 12), ("1.3b", 32), ("2.7b", 32), ("6.7b", 32), ("13b", 40)]),
        ("opt-", [("30b", 56), ("66b", 72), ("175b", 96)]),
        ("", [("mt-nlg-530b", 128), ("llama2-7b", 32), ("llama2-13b", 40)]),
    ],
)
def test_heads_which_no_count_of_parameters_tells(family, heads):
    """Without grouped queries, heads share the width whatever their number."""
    assert [(size, llm_preset(family + size).heads) for size, _ in heads] == heads


def test_layers_of_the_models_with_two_kinds():
    deepseek = llm_preset("deepseek-v3")
    assert [deepseek.is_moe_layer(i) for i in (0, 2, 3, 60)] == [False, False, True, True]
    oss = llm_preset("gpt-oss-20b")
    assert [oss.layer_window(i) for i in range(4)] == [128, None, 128, None]
    assert (oss.moe.top_k, oss.kv_heads, oss.head_dim) == (4, 8, 64)
