"""A large job whose programs are recorded layer by layer, as a dataset of one file per step.

    python benchmarks/program_trace.py FOLDER --dp 16 --tp 8 --pp 8 --microbatches 32 --steps 10

1F1B; a layer is two computes, each with a tensor-parallel collective behind it; weights are
gathered and gradients reduced layer by layer, over all replicas or over ``--shard`` of them. One
worker is slow, all durations vary by 2%.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from paceline.sources import parquet
from paceline.synth import Layers, SlowWorker, SynthSpec, each_step
from paceline.trace import OpKind

#: Seconds of a compute's part, of a collective within a pass, and of one of a layer's weights.
PART_S, INNER_S, WEIGHTS_S = 1e-3, 2e-4, 1e-3
OTHER_S = 1e-4


def spec_of(
    dp: int,
    pp: int,
    microbatches: int,
    layers: int,
    steps: int,
    shard: int = 0,
    tp: int = 1,
) -> SynthSpec:
    """The job; the worker in its middle computes 1.3x slower."""
    base_s = dict.fromkeys(OpKind, OTHER_S)
    base_s |= {OpKind.FORWARD_COMPUTE: 2 * layers * PART_S}
    base_s |= {OpKind.BACKWARD_COMPUTE: 4 * layers * PART_S, OpKind.TENSOR_COMM: INNER_S}
    of_weights = (OpKind.PARAMS_ALL_GATHER, OpKind.GRADS_REDUCE_SCATTER)
    base_s |= dict.fromkeys(of_weights, layers * WEIGHTS_S)
    base_s |= {OpKind.OPTIMIZER: 5e-3}
    program = Layers(
        layers, fsdp=True, prefetch=layers, reshard=False, accumulate=True, shard=shard
    )
    slow = SlowWorker(dp // 2, pp // 2, 1.3, peer=0)
    return SynthSpec(
        dp=dp,
        pp=pp,
        tp=tp,
        microbatches=microbatches,
        steps=steps,
        layers=program,
        noise=0.02,
        slow_workers=(slow,),
        base_s=base_s,
    )


def write_dataset(folder: Path, spec: SynthSpec) -> list[Path]:
    """Write one file per step, ``step-00000.parquet`` on; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, trace in enumerate(each_step(spec)):
        paths.append(folder / f"step-{number:05d}.parquet")
        parquet.write(trace, paths[-1], force=True)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for name, default in (("dp", 16), ("pp", 8), ("microbatches", 32), ("layers", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tp", type=int, default=8, help="tensor-parallel ranks of each dp rank")
    parser.add_argument("--shard", type=int, default=0, help="replicas that share weights; 0: all")
    args = vars(parser.parse_args())
    paths = write_dataset(args.pop("folder"), spec_of(**args))
    print(json.dumps({"files": len(paths), "bytes": sum(p.stat().st_size for p in paths)}))


if __name__ == "__main__":
    main()
