"""Predictions of FSDP training as MosaicML published it: MPT models on H100 and A100, PyTorch.

    python benchmarks/fsdp.py README.md

FILE is ``scripts/train/benchmarking/README.md`` of mosaicml/llm-foundry (8c8dd48). No constant of
the model is fitted to it.
"""

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm import LLM
from paceline.model.plan import Plan
from paceline.plan.predict import predict

#: Model -> hidden, heads, layers (``scripts/train/yamls/pretrain``).
SHAPES = {
    "125m": (768, 12, 12),
    "350m": (1024, 16, 24),
    "760m": (1536, 12, 24),
    "1b": (2048, 16, 24),
    "3b": (2560, 20, 32),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 56, 48),
    "70b": (8192, 64, 80),
}
GPUS = {"h100_80gb": "h100", "a100_80gb": "a100-80g", "a100_40gb": "a100-40g"}
ZERO = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}
#: FlashAttention-2 is twice as fast as the first, which these runs had (Dao 2023, abstract).
FIRST_FLASH = 0.5


def table_rows(path):
    """Rows of all tables of a Markdown file, by their columns."""
    head = None
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if head is None:
            head = cells
        elif set(cells[0]) - set("- "):
            yield dict(zip(head, cells, strict=True))


def job(row, kernels="auto"):
    """Model, plan and cluster of a row."""
    hidden, heads, layers = SHAPES[row["Model"].lower()]
    seq_len, gpus = int(row["SeqLen (T)"]), int(row["# GPUs"])
    llm = LLM(
        name=f"mpt-{row['Model']}", layers=layers, hidden=hidden, heads=heads, vocab=50368,
        seq_len=seq_len, max_positions=seq_len, bias=False, positions="learned", tied=True,
    )  # fmt: skip
    samples = int(row["MicroBatchSize"]) * gpus
    plan = Plan(
        dp=gpus,
        micro_batch=int(row["MicroBatchSize"]),
        global_batch=samples * max(1, round(int(row["GlobalBatchSize"]) / samples)),
        zero=ZERO[row["Sharding Strategy"]],
        recompute="full" if row["Activation Checkpointing"].lower() == "true" else "none",
        precision="fp8" if "fp8" in row["Precision"] else "bf16",
        kernels=kernels,
    )
    cluster = cluster_preset(GPUS[row["GPU"]])
    share = cluster.efficiency.sdpa * FIRST_FLASH
    return llm, plan, replace(cluster, efficiency=replace(cluster.efficiency, sdpa=share))


def measured_over_predicted(path):
    """(row, measured over predicted seconds of a step) of each row."""
    for row in table_rows(path):
        llm, plan, cluster = job(row, kernels="eager")
        prediction = predict(llm, plan, cluster)
        yield row, prediction.tokens_per_s_per_gpu / float(row["Throughput (T/s/GPU)"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="the README with the tables")
    ratios = defaultdict(list)
    for row, ratio in measured_over_predicted(parser.parse_args().file):
        precision = "fp8" if "fp8" in row["Precision"] else "bf16"
        ratios["all", ""].append(ratio)
        ratios[row["GPU"], precision].append(ratio)
        ratios[row["GPU"], f"{precision} {row['Model']}"].append(ratio)
        length = "up to 8,192" if int(row["SeqLen (T)"]) <= 8192 else "longer"
        ratios[row["GPU"], f"{precision} {length}"].append(ratio)
    for (gpu, name), values in ratios.items():
        ratio = np.array(values)
        error = np.abs(1 / ratio - 1)
        low, high = np.quantile(ratio, [0.1, 0.9])
        print(
            f"{gpu:10} {name:18} {len(ratio):3}  MAPE {error.mean():5.1%}  median "
            f"{np.median(error):5.1%}  bias {(1 / ratio).mean() - 1:+.1%}  "
            f"80%: {low:.2f}-{high:.2f}"
        )


if __name__ == "__main__":
    main()
