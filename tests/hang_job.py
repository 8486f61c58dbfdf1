"""A real job of two gloo ranks, recorded, of which rank 1 never comes to step 70's all-reduce.

``hang_job.py FOLDER``, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Once a file ``dump``
is there each rank dumps its flight recorder beside it, as NCCL's watchdog does at a time-out.
"""

import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import paceline.record as record

HANGS_AT, STEP_S = 70, 0.1


def stuck():
    while True:
        time.sleep(0.1)


def train_step(number, rank):
    with record.current().op("forward-compute", microbatch=0):
        time.sleep(STEP_S)
    if number == HANGS_AT and rank == 1:
        stuck()
    dist.all_reduce(torch.ones(8))


def dump_when_asked(folder, rank):
    while not (folder / "dump").exists():
        time.sleep(0.1)
    data = torch._C._distributed_c10d._dump_fr_trace()
    part = folder / "dumps" / f"part_{rank}"
    part.write_bytes(data)
    part.rename(part.with_name(f"nccl_trace_rank_{rank}"))


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    threading.Thread(target=dump_when_asked, args=(folder, rank), daemon=True).start()
    recorder = record.start(folder / "run")
    for number in range(100):
        with recorder.step(number):
            train_step(number, rank)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
