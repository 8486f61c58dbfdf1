"""Known GPUs in the nodes that their makers sell, with sources and dated prices.

Peaks are dense: datasheet values "with sparsity" are halved. The datasheets' "GB" of memory are
counted as GiB, because an "80 GB" A100 has five HBM stacks of 16 GiB. (nvidia-smi shows 81,920 MiB;
for newer GPUs of "141", "180" and "186 GB" it shows 0.4 to 0.6% less.)
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

from paceline.errors import ModelError
from paceline.model.cluster import Cluster, Gpu, Network, Node
from paceline.model.efficiency import EFFICIENCIES, Efficiency

_T = 1e12
_GIB = 2.0**30
_GBIT = 1e9 / 8  # byte/s

# Latency per hop of a ring with large messages (protocol Simple): NCCL 2.x, src/graph/tuning.cc,
# hwLat: 3.4 us over NVLink, 14 us over the network. RCCL starts from the same table.
_LINK_S = 3.4e-6
_NET_S = 14e-6
_LATENCY = "hop latency: NCCL tuning.cc, Simple"

_V100 = Gpu(
    name="V100 SXM2 16GB",
    peak_flops={"fp32": 15.7 * _T, "fp16": 125 * _T},
    memory_bytes=16 * _GIB,
    memory_bandwidth=0.9e12,
    sms=80,
    source="NVIDIA V100 datasheet (2020), SXM2",
)
_A100 = Gpu(
    name="A100 SXM4 80GB",
    peak_flops={"fp32": 19.5 * _T, "fp16": 312 * _T, "bf16": 312 * _T},
    memory_bytes=80 * _GIB,
    memory_bandwidth=2.039e12,
    sms=108,
    source="NVIDIA A100 datasheet (2022), SXM",
)
_RTX3090 = Gpu(
    name="GeForce RTX 3090 24GB",
    # Tensor cores with fp32 accumulation, as in training; fp16 accumulation is twice as fast.
    peak_flops={"fp32": 35.6 * _T, "fp16": 71 * _T, "bf16": 71 * _T},
    memory_bytes=24 * _GIB,
    memory_bandwidth=0.936e12,
    sms=82,
    source="NVIDIA Ampere GA102 GPU architecture whitepaper (2021), GeForce RTX 3090",
)
_H100 = Gpu(
    name="H100 SXM5 80GB",
    peak_flops={"fp32": 66.9 * _T, "fp16": 989.4 * _T, "bf16": 989.4 * _T, "fp8": 1978.9 * _T},
    memory_bytes=80 * _GIB,
    memory_bandwidth=3.35e12,
    sms=132,
    source="NVIDIA H100 Tensor Core GPU architecture whitepaper (2023), SXM5, boost clock",
)
_B200 = Gpu(
    name="B200 SXM 180GB",
    peak_flops={
        "fp32": 75 * _T,
        "fp16": 2250 * _T,
        "bf16": 2250 * _T,
        "fp8": 4500 * _T,
        "nvfp4": 9000 * _T,
    },
    memory_bytes=180 * _GIB,
    memory_bandwidth=8e12,
    sms=148,
    source="NVIDIA DGX B200 datasheet (2024): 1,440 GB and 64 TB/s of 8 GPUs; HGX B200 table",
)
_GB200 = Gpu(
    name="GB200 186GB",
    peak_flops={
        "fp32": 80 * _T,
        "fp16": 2500 * _T,
        "bf16": 2500 * _T,
        "fp8": 5000 * _T,
        "nvfp4": 10000 * _T,
    },
    memory_bytes=186 * _GIB,
    memory_bandwidth=8e12,
    sms=152,
    source="NVIDIA GB200 NVL72 datasheet (2024): 13.4 TB and 576 TB/s of 72 GPUs",
)

_MI300X = Gpu(
    name="MI300X OAM 192GB",
    peak_flops={"fp32": 163.4 * _T, "fp16": 1307.4 * _T, "bf16": 1307.4 * _T, "fp8": 2614.9 * _T},
    memory_bytes=192 * _GIB,
    memory_bandwidth=5.3e12,
    sms=304,
    source="AMD Instinct MI300X datasheet (2023); sms = compute units",
)
_MI355X = Gpu(
    name="MI355X OAM 288GB",
    peak_flops={"fp32": 157.3 * _T, "fp16": 2516.6 * _T, "bf16": 2516.6 * _T, "fp8": 5033.2 * _T},
    memory_bytes=288 * _GIB,
    memory_bandwidth=8e12,
    sms=256,
    source="AMD Instinct MI355X datasheet (2025); sms = compute units",
)

# Bandwidth to the host in one direction: x16 of PCI Express 3.0, 4.0 and 5.0 for each GPU.
_PCIE3_HOST, _PCIE4_HOST, _PCIE5_HOST = 15.75e9, 31.5e9, 63e9
# A Grace has 900 GB/s of NVLink-C2C in both directions together (GB200 datasheet). Its two GPUs are
# assumed to share them; no measurement of both at once was found.
_GRACE_HOST = 225e9

_DGX1V = Node(
    gpus=8,
    bandwidth=150e9,
    latency_s=_LINK_S,
    topology="mesh",
    host_bandwidth=_PCIE3_HOST,
    source=f"NVIDIA DGX-1 V100 whitepaper (2017): 6 NVLink2 x 25 GB/s, cube mesh; {_LATENCY}",
)
_DGX2 = Node(
    gpus=16,
    bandwidth=150e9,
    latency_s=_LINK_S,
    host_bandwidth=_PCIE3_HOST,
    source=f"NVIDIA DGX-2 datasheet (2019): NVSwitch, 6 NVLink2 x 25 GB/s; {_LATENCY}",
)
_DGX_A100 = Node(
    gpus=8,
    bandwidth=300e9,
    latency_s=_LINK_S,
    host_bandwidth=_PCIE4_HOST,
    source=f"NVIDIA DGX A100 datasheet (2021): NVSwitch, 12 NVLink3 x 25 GB/s; {_LATENCY}",
)
_DGX_H100 = Node(
    gpus=8,
    bandwidth=450e9,
    latency_s=_LINK_S,
    host_bandwidth=_PCIE5_HOST,
    source=f"NVIDIA DGX H100 datasheet (2023): NVSwitch, 18 NVLink4 x 25 GB/s; {_LATENCY}",
)
_DGX_B200 = Node(
    gpus=8,
    bandwidth=900e9,
    latency_s=_LINK_S,
    host_bandwidth=_PCIE5_HOST,
    source=f"NVIDIA DGX B200 datasheet (2024): NVSwitch, 18 NVLink5 x 50 GB/s; {_LATENCY}",
)
_NVL72 = Node(
    gpus=72,
    bandwidth=900e9,
    latency_s=_LINK_S,
    host_bandwidth=_GRACE_HOST,
    source=f"NVIDIA GB200 NVL72 datasheet (2024): NVSwitch, 18 NVLink5 x 50 GB/s; {_LATENCY}",
)
_PCIE4 = Node(
    gpus=4,
    bandwidth=31.5e9,
    latency_s=_LINK_S,
    topology="pcie",
    host_bandwidth=_PCIE4_HOST,
    source=f"PCI Express 4.0 x16 (2017), a workstation of four; {_LATENCY}",
)
_MI300X_NODE = Node(
    gpus=8,
    bandwidth=448e9,
    latency_s=_LINK_S,
    topology="mesh",
    host_bandwidth=_PCIE5_HOST,
    source=f"AMD Instinct MI300X platform datasheet (2023): 7 links x 64 GB/s; {_LATENCY}",
)
_MI350_NODE = replace(
    _MI300X_NODE,
    bandwidth=7 * 76.8e9,
    source=f"AMD Instinct MI350 series platform datasheet (2025): 7 links x 76.8 GB/s; {_LATENCY}",
)


def _network(nics: int, gbit: float, source: str) -> Network:
    return Network(
        nics=nics,
        nic_bandwidth=gbit * _GBIT,
        latency_s=_NET_S,
        source=f"{source}: {nics} x {gbit:g} Gb/s; {_LATENCY}",
    )


class _Preset(NamedTuple):
    gpu: Gpu
    node: Node
    network: Network
    price: float | None
    price_source: str


_UNPRICED = "no public on-demand price known; give price_per_gpu_hour"
#: AWS's prices from that repository's file 109-gpu-pricing/hyperscalers.json.
_RECEIPTS = "2026-11-09 by datareceipts/data-receipts"
_A100_8NIC = _network(8, 200, "NVIDIA DGX A100 datasheet (2021), HDR")
_H100_NET = _network(8, 400, "NVIDIA DGX H100 datasheet (2023), NDR")

CLUSTER_PRESETS: dict[str, _Preset] = {
    "v100-16g": _Preset(
        _V100,
        _DGX1V,
        _network(4, 100, "NVIDIA DGX-1 V100 whitepaper (2017), EDR"),
        3.06,
        "AWS p3.16xlarge on-demand, us-east-1, 2023, unverified: 24.48 $/h for 8 GPUs",
    ),
    "v100-32g": _Preset(
        replace(
            _V100,
            name="V100 SXM3 32GB",
            memory_bytes=32 * _GIB,
            source="NVIDIA V100 datasheet (2020), SXM2; SXM3 as in the DGX-2",
        ),
        _DGX2,
        _network(8, 100, "NVIDIA DGX-2 datasheet (2019), EDR"),
        3.90,
        "AWS p3dn.24xlarge on-demand, us-east-1, 2023, unverified: 31.212 $/h for 8 GPUs",
    ),
    "a100-40g": _Preset(
        replace(
            _A100,
            name="A100 SXM4 40GB",
            memory_bytes=40 * _GIB,
            memory_bandwidth=1.555e12,
            source="NVIDIA A100 datasheet (2020), SXM",
        ),
        _DGX_A100,
        _A100_8NIC,
        2.74,
        f"AWS p4d.24xlarge on-demand, us-east-1, {_RECEIPTS}: 21.96 $/h for 8 GPUs",
    ),
    "a100-80g": _Preset(
        _A100,
        _DGX_A100,
        _A100_8NIC,
        3.43,
        f"AWS p4de.24xlarge on-demand, us-east-1, {_RECEIPTS}: 27.45 $/h for 8 GPUs",
    ),
    # The cluster of the vTrain paper's multi-node validation (IV): half of a DGX A100's network.
    "a100-80g-4nic": _Preset(
        _A100,
        _DGX_A100,
        _network(4, 200, "vTrain paper (2023), IV, HDR"),
        5.00,
        "vTrain paper (2023), Table I: 11,200 $/h for 2,240 A100s",
    ),
    "rtx3090": _Preset(
        _RTX3090,
        _PCIE4,
        _network(1, 100, "assumed of a workstation (2021)"),
        None,
        _UNPRICED,
    ),
    "h100": _Preset(
        _H100,
        _DGX_H100,
        _H100_NET,
        6.88,
        f"AWS p5.48xlarge on-demand, us-east-1, {_RECEIPTS}: 55.04 $/h for 8 GPUs",
    ),
    "h200": _Preset(
        replace(
            _H100,
            name="H200 SXM 141GB",
            memory_bytes=141 * _GIB,
            memory_bandwidth=4.8e12,
            source="NVIDIA H200 datasheet (2024), SXM",
        ),
        _DGX_H100,
        _network(8, 400, "NVIDIA DGX H200 datasheet (2024), NDR"),
        7.91,
        "AWS p5en.48xlarge on-demand, us-east-1, 2026-08-06 by dstackai/dstack pull 4110: "
        "63.30 $/h for 8 GPUs",
    ),
    "b200": _Preset(
        _B200,
        _DGX_B200,
        _network(8, 400, "NVIDIA DGX B200 datasheet (2024), NDR"),
        14.24,
        "AWS p6-b200.48xlarge on-demand, 2025, unverified: 113.93 $/h for 8 GPUs",
    ),
    "gb200": _Preset(
        _GB200,
        _NVL72,
        _network(72, 400, "NVIDIA DGX GB200 datasheet (2024), NDR, one adapter per GPU"),
        10.50,
        "CoreWeave GB200 NVL72 on-demand, 2025, unverified: 42.00 $/h for 4 GPUs",
    ),
    "b300": _Preset(
        replace(
            _B200,
            name="B300 SXM 270GB",
            peak_flops={**_B200.peak_flops, "nvfp4": 13500 * _T},
            memory_bytes=270 * _GIB,
            source="NVIDIA DGX B300 datasheet (2025); HGX B300 table",
        ),
        replace(_DGX_B200, source=f"NVIDIA DGX B300 datasheet (2025): NVLink5; {_LATENCY}"),
        _network(8, 800, "NVIDIA DGX B300 datasheet (2025), ConnectX-8 XDR"),
        None,
        _UNPRICED,
    ),
    "gb300": _Preset(
        replace(
            _GB200,
            name="GB300 279GB",
            peak_flops={**_GB200.peak_flops, "nvfp4": 15000 * _T},
            memory_bytes=279 * _GIB,
            source="NVIDIA GB300 NVL72 datasheet (2025): 20 TB and 576 TB/s of 72 GPUs",
        ),
        replace(_NVL72, source=f"NVIDIA GB300 NVL72 datasheet (2025): NVLink5; {_LATENCY}"),
        _network(72, 800, "NVIDIA GB300 NVL72 datasheet (2025), ConnectX-8, one per GPU"),
        None,
        _UNPRICED,
    ),
    "mi300x": _Preset(
        _MI300X,
        _MI300X_NODE,
        _network(8, 400, "AMD Instinct cluster reference architecture (2024)"),
        6.00,
        "Oracle BM.GPU.MI300X.8 list price, 2024, unverified: 48 $/h for 8 GPUs",
    ),
    "mi325x": _Preset(
        replace(
            _MI300X,
            name="MI325X OAM 256GB",
            memory_bytes=256 * _GIB,
            memory_bandwidth=6e12,
            source="AMD Instinct MI325X datasheet (2024); sms = compute units",
        ),
        _MI300X_NODE,
        _network(8, 400, "AMD Instinct cluster reference architecture (2024)"),
        None,
        _UNPRICED,
    ),
    "mi350x": _Preset(
        replace(
            _MI355X,
            name="MI350X OAM 288GB",
            peak_flops={
                "fp32": 144.2 * _T,
                "fp16": 2306.9 * _T,
                "bf16": 2306.9 * _T,
                "fp8": 4613.7 * _T,
            },
            source="AMD Instinct MI350X datasheet (2025); sms = compute units",
        ),
        _MI350_NODE,
        _network(8, 400, "AMD Instinct cluster reference architecture (2025)"),
        None,
        _UNPRICED,
    ),
    "mi355x": _Preset(
        _MI355X,
        _MI350_NODE,
        _network(8, 400, "AMD Instinct cluster reference architecture (2025)"),
        None,
        _UNPRICED,
    ),
    "l40s": _Preset(
        Gpu(
            name="L40S PCIe 48GB",
            peak_flops={"fp32": 91.6 * _T, "fp16": 362 * _T, "bf16": 362 * _T, "fp8": 733 * _T},
            memory_bytes=48 * _GIB,
            memory_bandwidth=0.864e12,
            sms=142,
            source="NVIDIA L40S datasheet (2023)",
        ),
        Node(
            gpus=4,
            bandwidth=32e9,
            latency_s=_LINK_S,
            topology="pcie",
            source=f"NVIDIA L40S datasheet (2023): PCIe Gen4 x16; {_LATENCY}",
        ),
        _network(2, 400, "MLPerf Training v4.0 (2024), system l40s_n16: two BlueField-3"),
        None,
        _UNPRICED,
    ),
    "h200-nvl": _Preset(
        replace(
            _H100,
            name="H200 NVL 141GB",
            peak_flops={"fp32": 60 * _T, "fp16": 835.5 * _T, "bf16": 835.5 * _T, "fp8": 1671 * _T},
            memory_bytes=141 * _GIB,
            memory_bandwidth=4.8e12,
            source="NVIDIA H200 datasheet (2024), NVL",
        ),
        Node(
            gpus=4,
            bandwidth=450e9,
            latency_s=_LINK_S,
            source=f"NVIDIA H200 datasheet (2024): 4-way NVLink bridge, 900 GB/s; {_LATENCY}",
        ),
        _network(2, 400, "NVIDIA enterprise reference architecture 2-8-5 (2024), of half a server"),
        None,
        _UNPRICED,
    ),
}

_ALIASES = {
    "v100": "v100-32g",
    "v100-sxm2": "v100-16g",
    "v100-sxm3": "v100-32g",
    "dgx-1": "v100-16g",
    "dgx-1v": "v100-16g",
    "dgx-2": "v100-32g",
    "a100": "a100-80g",
    "p4d": "a100-40g",
    "p4de": "a100-80g",
    "a100-4nic": "a100-80g-4nic",
    "vtrain": "a100-80g-4nic",
    "rtx3090-24g": "rtx3090",
    "geforcertx3090": "rtx3090",
    "h100-80g": "h100",
    "h200-141g": "h200",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
    "mi300": "mi300x",
}


def cluster_preset(name: str, gpus_per_node: int | None = None) -> Cluster:
    """A cluster of the usual nodes with a GPU, as large as a job needs.

    Args:
        name: "a100-80g", or another spelling: "A100", "DGX-H100", "H100 SXM", "A100_80GB".
        gpus_per_node: GPUs of a node; None = as sold. The adapters change in proportion.

    Raises:
        ModelError: no preset has that name (the nearest are named), or ``gpus_per_node`` is wrong.
    """
    key = _find(name)
    preset = CLUSTER_PRESETS[key]
    node, network = preset.node, preset.network
    if gpus_per_node is not None and gpus_per_node != node.gpus:
        resized = replace(node, gpus=gpus_per_node)
        nics = max(1, network.nics * gpus_per_node // node.gpus)
        node, network = resized, replace(network, nics=nics)
    return Cluster(
        name=key,
        gpu=preset.gpu,
        node=node,
        network=network,
        price_per_gpu_hour=preset.price,
        price_source=preset.price_source,
        efficiency=EFFICIENCIES.get(key, Efficiency()),
    )


def _find(name: str) -> str:
    key_of = {_squeeze(word): key for word, key in _ALIASES.items()}
    key_of |= {_squeeze(word): word for word in CLUSTER_PRESETS}
    key_of |= {  # "b200-180g"
        f"{_squeeze(word)}{preset.gpu.memory_bytes / _GIB:.0f}g": word
        for word, preset in CLUSTER_PRESETS.items()
    }
    squeezed = _squeeze(name) if isinstance(name, str) else ""
    # "DGX-H100", "NVIDIA H100 SXM5 80GB", "h100 pcie" is another GPU and stays unknown.
    for maker in ("nvidia", "amd", "instinct", "tesla"):
        squeezed = squeezed.removeprefix(maker)
    for spelled in (squeezed, _plain(squeezed)):
        if spelled in key_of:
            return key_of[spelled]
    near = get_close_matches(_plain(squeezed), key_of, n=5, cutoff=0.5)
    names = list(dict.fromkeys(key_of[word] for word in near))[:3]
    hint = f"the nearest are {', '.join(names)}; " if names else ""
    raise ModelError(
        f"there is no GPU preset {str(name)[:60]!r}; {hint}known are {', '.join(CLUSTER_PRESETS)} "
        "(or describe the cluster in a YAML file)"
    )


def _squeeze(name: str) -> str:
    """The name without case, separators and the B of GB."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    return plain[:-1] if plain.endswith("gb") and plain[-3:-2].isdigit() else plain


def _plain(squeezed: str) -> str:
    """The name without the names of system and socket."""
    for system in ("dgx", "hgx"):
        squeezed = squeezed.removeprefix(system)
    for memory in ("gbhbm3", "gbhbm3e"):  # nvidia-smi: "NVIDIA H100 80GB HBM3"
        if squeezed.endswith(memory):
            squeezed = squeezed.removesuffix(memory) + "g"
    for socket in ("sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "sxm", "oam"):
        squeezed = squeezed.replace(socket, "")
    return squeezed
