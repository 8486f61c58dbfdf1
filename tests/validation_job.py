"""A job of three processes that pauses to be validated, twice, and goes on.

python validation_job.py FOLDER RANK
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from paceline.detect.validate import Effort, run_validation
from paceline.detect.verdict import Measurements
from paceline.errors import DetectError

EFFORT = Effort(gemm=64, message_bytes=1 << 14, rounds=2, timeout_s=300)


def numbers(measured: Measurements) -> dict[str, object]:
    return {
        "gemm": sorted(measured.gemm_s),
        "links": sorted(measured.link_s),
        "rounds": sorted({len(each) for each in measured.link_s.values()}),
        "same": [*measured.gemm_s.items(), *measured.link_s.items()],
    }


def main(folder: Path, rank: int) -> None:
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=3)
    groups = [dist.new_group([0, 2]), dist.new_group([1])]
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    found = [numbers(run_validation(effort=EFFORT))]
    found.append(numbers(run_validation([2, 1], (((2, 1),),), effort=EFFORT)))
    found.append(numbers(run_validation(group=groups[rank == 1], effort=EFFORT)))
    try:
        run_validation([0, 5], effort=EFFORT)
    except DetectError as error:
        stranger = str(error)
    token = torch.ones(1)
    dist.all_reduce(token)  # the job goes on
    result = {
        "found": found,
        "stranger": stranger,
        "sum": token.item(),
        "untouched": bool((random == torch.get_rng_state()).all())
        and threads == torch.get_num_threads(),
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
