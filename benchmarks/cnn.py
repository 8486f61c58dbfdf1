"""Convolutional networks against measured runs: one command for each question.

    python benchmarks/cnn.py saved         what autograd saves, against its own hooks
    python benchmarks/cnn.py memory        the largest batch that fits, against timm's table
    python benchmarks/cnn.py throughput    samples per second, against timm's table

Needs torch, timm and torchvision, and the shared data. The networks are read anew each time, some
seconds each. Rows are `data/cnn/public_cnn_throughput.csv` of the shared data, sources beginning
with huggingface/pytorch-image-models.
"""

from __future__ import annotations

import argparse

import cnn_gpu

COMMANDS = {
    "saved": cnn_gpu.saved,
    "memory": cnn_gpu.memory,
    "throughput": cnn_gpu.throughput,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--worst", type=int, default=5, help="how many misses to name")
    args = parser.parse_args()
    COMMANDS[args.command](args.worst)


if __name__ == "__main__":
    main()
