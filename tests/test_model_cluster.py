"""GPUs, nodes, networks: their values, the presets, and the YAML that describes them."""

from dataclasses import replace

import pytest

from paceline.errors import ModelError, OutputError, QuantityError
from paceline.model.calibration import Calibration
from paceline.model.cluster import Gpu, Network, Node
from paceline.model.cluster_presets import CLUSTER_PRESETS, cluster_preset
from paceline.model.cluster_yaml import cluster_text, load_cluster, save_cluster
from paceline.model.efficiency import Efficiency
from paceline.quantities import format_quantity, parse_quantity

OWN = """\
name: lab
gpu:
  name: L4
  peak_flops: {fp16: 121 TFLOP/s, fp32: 30.3e12}
  memory_bytes: 24 GB
  memory_bandwidth: 300 GB/s
  sms: 58
node: {gpus: 4, bandwidth: 32 GB/s, latency_s: 6 us, topology: pcie}
network: {nics: 1, nic_bandwidth: 100 Gb/s, latency_s: 0.02 ms}
price_per_gpu_hour: 0.80
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "cluster.yaml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "measure", "number"),
    [
        ("80 GB", "bytes", 80e9),
        ("80GiB", "bytes", 80 * 2**30),
        ("200 Gb/s", "byte/s", 25e9),
        ("2.0 TB/s", "byte/s", 2e12),
        ("5 us", "seconds", 5e-6),
        ("312 TFLOP/s", "FLOP/s", 312e12),
        ("300e9", "tokens", 300e9),
        ("1.5 T", "tokens", 1.5e12),
        (0.85, "", 0.85),
    ],
)
def test_quantities(text, measure, number):
    assert parse_quantity(text, measure) == pytest.approx(number, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "measure", "said"),
    [
        ("80 GB", "byte/s", "'GB' is no unit of byte/s; write e.g. 300 GB/s"),
        ("80 Gb", "bytes", "'Gb' is no unit of bytes"),
        ("fast", "byte/s", "must be a number"),
        (True, "bytes", "must be a number"),
        ("1e999", "bytes", "finite"),
        ("nan", "bytes", "must be a number"),
    ],
)
def test_wrong_quantities_say_what_to_write(text, measure, said):
    with pytest.raises(QuantityError, match=said):
        parse_quantity(text, measure)


def test_quantities_are_written_so_that_they_read_back_the_same():
    assert format_quantity(80 * 2.0**30, "bytes") == "80 GiB"
    assert format_quantity(300e9, "byte/s") == "300 GB/s"
    assert parse_quantity(format_quantity(1 / 3, "seconds"), "seconds") == 1 / 3


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("A100", "a100-80g"),
        ("a100_40GB", "a100-40g"),
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("DGX-H100", "h100"),
        ("H100 SXM", "h100"),
        ("DGX-GB300", "gb300"),
        ("GB200 NVL72", "gb200"),
        ("V100", "v100-32g"),
        ("AMD Instinct MI300X", "mi300x"),
        ("a100-80g-4nic", "a100-80g-4nic"),
        # As torch.cuda.get_device_name and nvidia-smi print them.
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla V100-SXM2-16GB", "v100-16g"),
        ("B200-180GB", "b200"),
    ],
)
def test_presets_by_the_names_people_write(name, preset):
    assert cluster_preset(name).name == preset


def test_preset_numbers():
    a100 = cluster_preset("a100-80g")
    assert (a100.gpu.peak("bf16"), a100.gpu.memory_bandwidth) == (312e12, 2.039e12)
    assert (a100.node.gpus, a100.node.bandwidth) == (8, 300e9)
    assert a100.network.node_bandwidth == 8 * 25e9
    # vTrain, IV: 800 Gb/s a node; Table I: 11,200 $/h for 2,240 GPUs.
    vtrain = cluster_preset("vtrain")
    assert (vtrain.network.node_bandwidth, vtrain.price_per_gpu_hour) == (100e9, 5.0)
    assert cluster_preset("gb200").node.gpus == 72


@pytest.mark.parametrize("name", CLUSTER_PRESETS)
def test_every_preset_names_its_sources_and_a_dated_price(name):
    cluster = cluster_preset(name)
    for part in (cluster.gpu, cluster.node, cluster.network):
        assert "(20" in part.source
    assert cluster.price_source
    assert cluster.price_per_gpu_hour is None or "20" in cluster.price_source


def test_other_node_sizes_keep_adapters_per_gpu():
    small = cluster_preset("a100", gpus_per_node=4)
    assert (small.node.gpus, small.network.nics) == (4, 4)
    with pytest.raises(ModelError, match="gpus must be a whole number >= 1, not 0"):
        cluster_preset("a100", gpus_per_node=0)


@pytest.mark.parametrize(("name", "near"), [("a10", "a100"), ("H800", "h100"), ("", "known are")])
def test_an_unknown_preset_names_the_nearest(name, near):
    with pytest.raises(ModelError, match=f"no GPU preset.*{near}"):
        cluster_preset(name)


def test_an_unsupported_precision_names_the_supported():
    with pytest.raises(ModelError, match=r"A100.* has no fp8; it supports fp32, fp16, bf16"):
        cluster_preset("a100").gpu.peak("fp8")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Node(gpus=0, bandwidth=1.0, latency_s=0.0), "gpus must be .* not 0"),
        (lambda: Node(gpus=8, bandwidth=-1.0, latency_s=0.0), "bandwidth must be .* not -1"),
        (lambda: Node(gpus=8, bandwidth=1.0, latency_s=0.0, topology="ring"), "not 'ring'"),
        (lambda: Network(nics=1, nic_bandwidth=1.0, latency_s=float("nan")), "latency_s"),
        (
            lambda: Network(nics=1, nic_bandwidth=1.0, latency_s=0.0, oversubscription=0.5),
            "oversubscription must be >= 1",
        ),
        (
            lambda: Gpu(
                name="x", peak_flops={"bf17": 1.0}, memory_bytes=1, memory_bandwidth=1, sms=1
            ),
            "'bf17'; known are fp32, fp16, bf16, fp8",
        ),
    ],
)
def test_wrong_values_are_named(make, said):
    with pytest.raises(ModelError, match=said):
        make()


def test_a_cluster_file_with_units(written):
    lab = load_cluster(written(OWN))
    assert lab.gpu.peak("fp16") == 121e12
    assert lab.gpu.peak("fp32") == 30.3e12
    assert lab.gpu.memory_bytes == 24e9
    assert lab.node == Node(gpus=4, bandwidth=32e9, latency_s=6e-6, topology="pcie")
    assert lab.network.nic_bandwidth == 12.5e9
    assert (lab.price_per_gpu_hour, lab.efficiency) == (0.8, Efficiency())


def test_a_file_based_on_a_preset_says_what_differs(written):
    text = "preset: a100\nname: ours\nnetwork:\n  nics: 2\nefficiency: {inter: 0.5}\n"
    ours, a100 = load_cluster(written(text)), cluster_preset("a100")
    assert ours.network == replace(a100.network, nics=2)
    assert ours.efficiency == replace(a100.efficiency, inter=0.5)
    assert (ours.gpu, ours.price_per_gpu_hour) == (a100.gpu, a100.price_per_gpu_hour)


@pytest.mark.parametrize("name", CLUSTER_PRESETS)
def test_a_saved_cluster_reads_back_equal(name, tmp_path):
    cluster = replace(
        cluster_preset(name),
        efficiency=Efficiency(gemm=1 / 3, launch_s=7.1e-6),
        calibration=Calibration(
            runs=52,
            constants={"gemm": 0.02},
            fixed=("memory",),
            mape=0.05,
            median=0.02,
            ranges={"hidden": (1024.0, 12288.0)},
            words={"recompute": ("full",)},
        ),
    )
    path = tmp_path / "saved.yaml"
    save_cluster(cluster, path)
    assert load_cluster(path) == cluster
    with pytest.raises(OutputError, match="exists already"):
        save_cluster(cluster, path)


def test_a_saved_file_is_written_with_units():
    text = cluster_text(cluster_preset("a100-80g"))
    assert "bf16: 312 TFLOP/s" in text
    assert "nic_bandwidth: 25 GB/s" in text
    assert "latency_s: 3.4 us" in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  sms: 58", "  smss: 58", r"yaml, line 7: gpu\.smss: unknown field; did you mean sms"),
        ("24 GB", "24 GB/s", r"line 5: gpu\.memory_bytes: 'GB/s' is no unit of bytes"),
        ("sms: 58", "sms: many", r"line 7: gpu\.sms: must be a whole number >= 1, not 'many'"),
        ("pcie", "ring", r"line 8: node\.topology: .*not 'ring'"),
        ("nics: 1,", "", r"line 9: network: lacks nics"),
        ("nics: 1,", "nics: 1, nics: 2,", r"line 9: network\.nics: given twice"),
        ("fp16: 121", "fp61: 121", r"line 4: gpu\.peak_flops\.fp61: unknown field; did you mean"),
        ("fp16: 121", "fp16: -121", r"line 4: gpu\.peak_flops: .*> 0"),
        ("0.80", "cheap", "line 10: price_per_gpu_hour: must be a number"),
        ("name: lab", "preset: b100", "line 1: preset: there is no GPU preset"),
        ("name: lab", "efficiency: {intre: 0.5}", r"efficiency\.intre: .*did you mean intra"),
        ("name: lab", "efficiency: {intra: 2}", r"line 1: efficiency\.intra: .*from 0 to 1"),
        ("name: lab", "efficiency: 0.5", "line 1: efficiency: must be a mapping"),
        ("name: lab", "a: [", "line [0-9]+: not YAML"),
        ("name: lab", "? [a]\n: b", "field's name must be a plain word"),
    ],
)
def test_a_wrong_file_names_line_and_field(written, old, new, said):
    with pytest.raises(ModelError, match=said):
        load_cluster(written(OWN.replace(old, new)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no mapping"),
        ("- 1", "holds no mapping"),
        ("name: x\n", "lacks gpu; describe it, or start from a preset"),
        ("preset: a100\ncalibration: &a {b: *a}\n", "calibration: too many or too deeply nested"),
        ("[" * 5000, "not YAML"),
    ],
)
def test_hostile_files(written, text, said):
    with pytest.raises(ModelError, match=said):
        load_cluster(written(text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"no\.yaml cannot be read: No such file"):
        load_cluster(tmp_path / "no.yaml")


@pytest.mark.parametrize(
    ("text", "measure", "number"),
    [
        ("1 kB", "bytes", 1e3), ("1 MB", "bytes", 1e6), ("1 TB", "bytes", 1e12),
        ("1 PB", "bytes", 1e15), ("1 KiB", "bytes", 2**10), ("1 MiB", "bytes", 2**20),
        ("1 TiB", "bytes", 2**40), ("3 bytes", "bytes", 3), ("8 bit/s", "byte/s", 1),
        ("1 Gbps", "byte/s", 125e6), ("1 GiB/s", "byte/s", 2**30), ("2 h", "seconds", 7200),
        ("2 min", "seconds", 120), ("2 s", "seconds", 2), ("2 ms", "seconds", 2e-3),
        ("2 ns", "seconds", 2e-9), ("2 µs", "seconds", 2e-6), ("2 GFLOPS", "FLOP/s", 2e9),
        ("2 $/h", "dollars", 2), ("2 USD", "dollars", 2), ("2 k", "tokens", 2e3),
        ("2 K", "tokens", 2e3), ("2 M", "tokens", 2e6), ("2 B", "tokens", 2e9),
        ("2 million", "tokens", 2e6), ("2 billion", "tokens", 2e9),
        ("2 trillion", "tokens", 2e12), ("2 tokens", "tokens", 2), ("1_000", "tokens", 1e3),
        ("-3", "", -3), (".5", "", 0.5),
    ],
)  # fmt: skip
def test_every_unit(text, measure, number):
    assert parse_quantity(text, measure) == pytest.approx(number, rel=1e-15)


def test_a_long_text_is_no_number():
    assert parse_quantity("1" * 57 + " B", "bytes") == pytest.approx(1.1111e56, rel=1e-3)
    with pytest.raises(QuantityError, match="must be a number"):
        parse_quantity("1" * 60 + " B", "bytes")


def test_numbers_without_units_refuse_them():
    with pytest.raises(
        QuantityError, match=r"'s' is unexpected: it has no unit; write e\.g\. 0\.85"
    ):
        parse_quantity("3 s", "")


@pytest.mark.parametrize(
    ("number", "measure", "text"),
    [
        (1.0, "bytes", "1 B"),
        (999.0, "bytes", "999 B"),
        (1000.0, "bytes", "1 kB"),
        (1e18, "bytes", 1e18),  # beyond the prefixes
        (0.0, "seconds", 0.0),
        (90.0, "seconds", "90 s"),
    ],
)
def test_texts_have_one_to_three_digits_before_the_point(number, measure, text):
    assert format_quantity(number, measure) == text


def test_nodes_that_gpus_take():
    a100 = cluster_preset("a100")
    assert [a100.nodes(gpus) for gpus in (1, 8, 9, 16)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": " "}, "the cluster's name must be a text"),
        ({"gpu": None}, "the cluster's gpu must be a Gpu, not None"),
        ({"node": 8}, "the cluster's node must be a Node, not 8"),
        ({"price_per_gpu_hour": -1.0}, "price_per_gpu_hour must be a number >= 0"),
    ],
)
def test_a_cluster_checks_its_parts(change, said):
    with pytest.raises(ModelError, match=said):
        replace(cluster_preset("a100"), **change)
    assert replace(cluster_preset("a100"), price_per_gpu_hour=0.0).price_per_gpu_hour == 0


@pytest.mark.parametrize(
    "change",
    [
        {"sms": 0}, {"sms": True}, {"sms": 1.0}, {"memory_bytes": 0.0}, {"memory_bandwidth": -1.0},
        {"memory_bytes": float("inf")}, {"name": ""}, {"peak_flops": {}}, {"peak_flops": 1.0},
        {"peak_flops": {"bf16": 0.0}}, {"memory_bytes": True},
    ],
)  # fmt: skip
def test_a_gpu_checks_its_numbers(change):
    with pytest.raises(ModelError, match=f"the GPU's {next(iter(change))}"):
        replace(cluster_preset("a100").gpu, **change)


def test_zero_latency_and_no_oversubscription_are_allowed():
    assert Node(gpus=1, bandwidth=1.0, latency_s=0.0).gpus == 1
    network = Network(nics=2, nic_bandwidth=10.0, latency_s=0.0, oversubscription=1.0)
    assert network.node_bandwidth == 20
    assert replace(network, oversubscription=4.0).node_bandwidth == 5


@pytest.mark.parametrize(
    ("field", "value", "good"),
    [
        ("gemm", 1.0, True), ("gemm", 1.01, False), ("gemm", 0.0, False), ("gemm", -0.1, False),
        ("gemm", True, False), ("gemm", "1", False), ("overlap", 0.0, True),
        ("overlap", 1.5, False), ("launch_s", 0.0, True), ("launch_s", 5.0, True),
        ("launch_s", float("inf"), False), ("compute", 2.0, True), ("compute", 0.0, False),
    ],
)  # fmt: skip
def test_shares_of_peaks_have_bounds(field, value, good):
    if good:
        assert getattr(Efficiency(**{field: value}), field) == value
        return
    with pytest.raises(ModelError, match=f"the efficiency's {field} must be"):
        Efficiency(**{field: value})


@pytest.mark.parametrize(("gpus", "nics"), [(16, 16), (2, 2), (1, 1)])
def test_adapters_change_with_the_node(gpus, nics):
    assert cluster_preset("h100", gpus_per_node=gpus).network.nics == nics


def test_a_node_with_fewer_adapters_than_gpus_keeps_one():
    assert cluster_preset("a100-80g-4nic", gpus_per_node=1).network.nics == 1
    assert cluster_preset("a100-80g-4nic", gpus_per_node=8).network.nics == 4
