"""A small real job of two processes whose flight recorder is dumped, as pickle and as JSON.

python gloo_job.py FOLDER RANK [SLOW_RANK]
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

#: Calls of a rank in a step: two all-reduces and an all-gather. (Gloo records no send and recv.)
STEPS, CALLS, STEP_S = 12, 3, 0.02


def main(folder: Path, rank: int, slow_rank: int = -1) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    group = dist.new_group([0, 1], group_desc="dp")
    some, other = torch.ones(64), torch.ones(8, 4)
    for _ in range(STEPS):
        time.sleep(STEP_S * (2 if rank == slow_rank else 1))
        dist.all_reduce(some)
        dist.all_reduce(other)
        dist.all_gather([torch.empty(64), torch.empty(64)], some, group=group)
    recorder = torch._C._distributed_c10d
    (folder / f"nccl_trace_rank_{rank}").write_bytes(recorder._dump_fr_trace())
    (folder / f"trace_{rank}.json").write_bytes(recorder._dump_fr_trace_json())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
