"""A rank of the demo's training job: a small GPT, 1F1B, replicas with different microbatches.

:mod:`paceline.demo.processes` starts it. It resembles a user's training loop; recording needs only
the lines with ``recorder``.

Two cores cannot run four ranks at once, so computes are paced: each does its real work, then sleeps
until its nominal time. A slow rank computes extra matrix products.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

import paceline.record as record
from paceline.demo.control import CONTROL, FIELDS, LOSSES, VERDICT, Control
from paceline.demo.gpt import ROWS, SEQUENCE, WIDTH, Stage, microbatch
from paceline.demo.plugin import Call, Communicator
from paceline.detect.launch import die_with
from paceline.detect.validate import Effort, Injected, run_validation
from paceline.detect.verdict import judge
from paceline.files import text_writer, write_files

#: Rows and columns of the extra matrix products.
_EXTRA = 96


class Worker:
    """A rank: its stage, its peers, and its settings."""

    def __init__(self, task: dict[str, Any], rank: int) -> None:
        self.rank, self.dp, self.pp = rank, task["dp"], task["pp"]
        # Megatron's order: replicas of a stage are neighbours.
        self.stage, self.replica = divmod(rank, self.dp)
        self.folder = Path(task["folder"])
        self.outputs: dict[int, Any] = {}
        self.sending: list[Any] = []
        self.loss = 0.0
        self.forward_s, self.backward_s = task["forward_s"], task["backward_s"]
        groups = [
            dist.new_group(list(range(stage * self.dp, (stage + 1) * self.dp)))
            for stage in range(self.pp)
        ]
        self.peers = groups[self.stage]
        self.told_world, self.told_peers = self._communicators(task["plugin"])
        self.model = Stage(self.stage, self.pp)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.factor, self.validated = 1.0, 0
        self.extra = torch.randn(_EXTRA, _EXTRA, generator=torch.Generator().manual_seed(rank))

    def _communicators(self, plugin: str | None) -> tuple[Communicator | None, ...]:
        """The groups of all ranks and of the peers, for the NCCL plugin."""
        if plugin is None:
            return None, None
        os.environ["PACELINE_RECORD"], os.environ["RANK"] = str(self.folder), str(self.rank)
        peers = dist.get_process_group_ranks(self.peers)
        return tuple(
            Communicator(Path(plugin), ranks, self.rank, str(self.folder))
            for ranks in (range(self.dp * self.pp), peers)
        )

    def train(self, recorder: record.Recorder) -> None:
        """Run steps until the stop message."""
        number = 0
        while not (control := self._control()).stop:
            self.factor = control.factor if self.rank == 0 else 1.0
            if control.validate > self.validated:
                self.validated = control.validate
                self._validate(control.factor)
            with recorder.step(number):
                loss = self._step(recorder, number, control.counts)
            if self.stage == self.pp - 1 and self.replica == 0:
                with (self.folder / LOSSES).open("a") as file:
                    line = {
                        "step": number,
                        "loss": loss,
                        "counts": control.counts,
                        "message": control.number,
                    }
                    file.write(json.dumps(line) + "\n")
            number += 1
        for communicator in (self.told_peers, self.told_world):
            if communicator is not None:
                communicator.close()

    def _control(self) -> Control:
        """Rank 0 reads the settings and broadcasts them before the step."""
        values = torch.zeros(len(FIELDS) + self.dp, dtype=torch.float64)
        if self.rank == 0:
            control = Control.read(self.folder / CONTROL)
            values[:] = torch.tensor(control.to_values(), dtype=torch.float64)
        told = None
        if self.told_world:
            told = self.told_world.collective(b"Broadcast", 2 * values.numel())
        _run(dist.broadcast(values, src=0, async_op=True), told)
        return Control.from_values(values.tolist())

    def _step(self, recorder: record.Recorder, number: int, counts: tuple[int, ...]) -> float:
        n, first = counts[self.replica], sum(counts[: self.replica])
        self.optimizer.zero_grad()
        self.sending, self.loss = [], 0.0
        ahead = min(n, self.pp - 1 - self.stage)
        for m in range(ahead):
            self._forward(recorder, m, microbatch(number, first + m), n)
        for m in range(n):
            if ahead + m < n:
                at = ahead + m
                self._forward(recorder, at, microbatch(number, first + at), n)
            self._backward(recorder, m)
        for work, _ in self.sending:
            work.wait()
        with recorder.op("grads-reduce-scatter"):
            loss = self._reduce(n / sum(counts))
        with recorder.op("optimizer"):
            self.optimizer.step()
        return loss

    def _forward(self, recorder: record.Recorder, m: int, tokens: Any, n: int) -> None:
        x = tokens[:, :-1]
        if self.stage > 0:
            x = self._receive(recorder, "forward-recv", m, -1).requires_grad_()
        with recorder.op("forward-compute", microbatch=m):
            y = self._paced(self.forward_s, lambda: self.model(x))
            if self.stage == self.pp - 1:  # the mean over the replica's microbatches
                y = functional.cross_entropy(y.flatten(0, 1), tokens[:, 1:].flatten()) / n
                self.loss += y.item()
        self.outputs[m] = x, y
        if self.stage < self.pp - 1:
            self._send(recorder, "forward-send", m, y.detach(), 1)

    def _backward(self, recorder: record.Recorder, m: int) -> None:
        x, y = self.outputs.pop(m)
        gradient = None
        if self.stage < self.pp - 1:
            gradient = self._receive(recorder, "backward-recv", m, 1)
        with recorder.op("backward-compute", microbatch=m):
            self._paced(self.backward_s, lambda: y.backward(gradient))
        if self.stage > 0:
            self._send(recorder, "backward-send", m, x.grad, -1)

    def _reduce(self, weight: float) -> float:
        """Sum of the replicas' mean gradients, each weighted by its share of the microbatches."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients] + [torch.tensor([self.loss])]) * weight
        told = self.told_peers.collective(b"AllReduce", flat.numel()) if self.told_peers else None
        _run(dist.all_reduce(flat, group=self.peers, async_op=True), told)
        first = 0
        for gradient in gradients:
            end = first + gradient.numel()
            gradient.copy_(flat[first:end].view_as(gradient))
            first = end
        return float(flat[-1])

    def _send(self, recorder: record.Recorder, kind: str, m: int, x: Any, by: int) -> None:
        peer = self.rank + by * self.dp
        op = recorder.launch(kind, microbatch=m)
        told = self._transfer(b"Send", x, peer)
        self.sending.append((op.track(dist.isend(x, peer)), x))
        if told:  # so few bytes are sent at once, when gloo considers a send finished
            told.queued()
            told.done()

    def _receive(self, recorder: record.Recorder, kind: str, m: int, by: int) -> Any:
        x = torch.empty(ROWS, SEQUENCE, WIDTH)
        peer = self.rank + by * self.dp
        op = recorder.launch(kind, microbatch=m)
        told = self._transfer(b"Recv", x, peer)
        _run(op.track(dist.irecv(x, peer)), told)
        return x

    def _transfer(self, func: bytes, x: Any, peer: int) -> Call | None:
        return self.told_world.transfer(func, x.numel(), peer) if self.told_world else None

    def _paced(self, seconds: float, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = work()
        if seconds:
            time.sleep(max(0.0, begin + seconds - time.perf_counter()))
            while time.perf_counter() < begin + seconds * self.factor:
                torch.mm(self.extra, self.extra)
        return result

    def _validate(self, factor: float) -> None:
        """Find slow ranks between two steps, while all ranks wait.

        As the machine is not slow, rank 0 does extra matrix work as in its computes. The
        measurement and the verdict do not know this.
        """
        injected = Injected(rank=0, factor=factor) if factor > 1 else None
        verdict = judge(run_validation(effort=Effort(rounds=3), injected=injected))
        if self.rank == 0:
            text = json.dumps(verdict.to_mapping())
            write_files({self.folder / VERDICT: text_writer(text)}, force=True)


def _run(work: Any, told: Call | None) -> None:
    """Wait for queued work; with the plugin the rank may be paused before."""
    if told:
        told.queued()
    work.wait()
    if told:
        told.done()


def main() -> None:
    """Entry point, with the task as JSON and the rank."""
    task, rank = json.loads(sys.argv[1]), int(sys.argv[2])
    die_with(task["parent"])
    torch.set_num_threads(1)
    world = task["dp"] * task["pp"]
    meeting = f"file://{task['folder']}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    worker = Worker(task, rank)
    with record.start(
        task["folder"], every=task["every"], dp=task["dp"], pp=task["pp"], flush_s=0.2
    ) as recorder:
        worker.train(recorder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
