"""Convolutional networks against measured runs: one command for each question.

    python benchmarks/cnn.py saved         what autograd saves, against its own hooks
    python benchmarks/cnn.py memory        the largest batch that fits, against timm's table
    python benchmarks/cnn.py throughput    samples per second, against timm's table
    python benchmarks/cnn.py abci          steps of six strategies on ABCI's V100s, abnormal runs
    python benchmarks/cnn.py scaling       more GPUs, from the same source's smallest run
    python benchmarks/cnn.py absolute      what frameworks make of the same job on one GPU

The first three need torch, timm, torchvision and the shared data. Networks are read anew each time,
some seconds each. Their rows are those of `data/cnn/public_cnn_throughput.csv` whose sources begin
with huggingface/pytorch-image-models.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cnn_abci
import cnn_gpu
import cnn_scaling

COMMANDS = {
    "abci": cnn_abci.shared,
    "saved": cnn_gpu.saved,
    "memory": cnn_gpu.memory,
    "throughput": cnn_gpu.throughput,
}
#: Those that take any file with the columns of public_cnn_throughput.csv.
OF_FILES = {"scaling": cnn_scaling.scaling, "absolute": cnn_scaling.absolute}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=[*COMMANDS, *OF_FILES])
    parser.add_argument("--worst", type=int, default=5, help="how many misses to name")
    parser.add_argument("--file", type=Path, help="scaling, absolute: rows of another file")
    parser.add_argument("--json", action="store_true", help="scaling, absolute: a JSON list")
    args = parser.parse_args()
    if args.command in OF_FILES:
        OF_FILES[args.command](args.worst, args.file, args.json)
    else:
        COMMANDS[args.command](args.worst)


if __name__ == "__main__":
    main()
