"""The demo's training repeated undisturbed in one process, for an exact comparison of losses.

Each replica's gradients are summed over its microbatches in order and weighted by its share, and
the replicas' sums are added. This repeats the computation of the four processes without recorder,
plugin and pauses.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from paceline.errors import DemoError

#: [step] the microbatches of each replica.
Counts = Sequence[Sequence[int]]


def losses_alone(counts: Counts, stages: int) -> tuple[list[float], list[float]]:
    """The losses of the same training in a separate process with one thread.

    Args:
        counts: [step] microbatches of each replica.
        stages: number of the pipeline's stages.

    Returns:
        [step] losses with these shares, and with the shares of step 0 for all steps.

    Raises:
        DemoError: the process failed.
    """
    code = f"import sys; sys.path[:] = {sys.path!r}; from paceline.demo.alone import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps({"counts": counts, "stages": stages, "parent": os.getpid()}),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no word"]
        raise DemoError(f"the same training in one process failed: {lines[-1][:200]}")
    as_counted, even = json.loads(done.stdout)
    return as_counted, even


class _Alone:
    def __init__(self, stages: int) -> None:
        import torch

        from paceline.demo.gpt import Stage

        self.stages = [Stage(stage, stages) for stage in range(stages)]
        self.optimizers = [torch.optim.SGD(s.parameters(), lr=0.05) for s in self.stages]

    def step(self, number: int, counts: Sequence[int]) -> float:
        """Train a step; returns its loss."""
        flat: list[Any] = [None] * len(self.stages)
        for replica, n in enumerate(counts):
            loss = self._passes(number, sum(counts[:replica]), n)
            for index, stage in enumerate(self.stages):
                mine = _flat(stage, loss if stage.is_last else 0.0) * (n / sum(counts))
                flat[index] = mine if flat[index] is None else flat[index] + mine
        for stage, optimizer, gradients in zip(self.stages, self.optimizers, flat, strict=True):
            first = 0
            for parameter in stage.parameters():
                if parameter.grad is not None:
                    end = first + parameter.grad.numel()
                    parameter.grad.copy_(gradients[first:end].view_as(parameter.grad))
                    first = end
            optimizer.step()
        return float(flat[-1][-1])

    def _passes(self, number: int, first: int, n: int) -> float:
        """Forward and backward of a replica's microbatches; returns the sum of their losses."""
        from torch.nn import functional

        from paceline.demo.gpt import microbatch

        loss = 0.0
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        for m in range(n):
            tokens = microbatch(number, first + m)
            inputs, outputs = [tokens[:, :-1]], []
            for stage in self.stages:
                outputs.append(stage(inputs[-1]))
                inputs.append(outputs[-1].detach().requires_grad_())
            logits = outputs[-1]
            y: Any = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / n
            loss += y.item()
            y.backward()
            for stage_output, given in zip(outputs[-2::-1], inputs[-2:0:-1], strict=True):
                stage_output.backward(given.grad)
        return loss


def _flat(stage: Any, loss: float) -> Any:
    import torch

    gradients = [p.grad for p in stage.parameters() if p.grad is not None]
    return torch.cat([g.flatten() for g in gradients] + [torch.tensor([loss])])


def main() -> None:
    """Entry point, with the task on standard input."""
    import torch

    from paceline.detect.launch import die_with

    task = json.load(sys.stdin)
    die_with(task["parent"])
    torch.set_num_threads(1)
    as_counted, even = _Alone(task["stages"]), None
    losses: tuple[list[float], list[float]] = [], []
    for number, counts in enumerate(task["counts"]):
        if even is None and counts != task["counts"][0]:
            even = copy.deepcopy(as_counted)
        losses[0].append(as_counted.step(number, counts))
        losses[1].append(even.step(number, task["counts"][0]) if even else losses[0][-1])
    json.dump(losses, sys.stdout)


if __name__ == "__main__":
    main()
