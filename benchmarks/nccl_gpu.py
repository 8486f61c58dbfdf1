"""The NCCL plugin in a real PyTorch job on GPUs: all that a session with a GPU has to show.

    PYTHONPATH=src python benchmarks/nccl_gpu.py        # ten minutes; ends with the bars
    PYTHONPATH=src python benchmarks/nccl_gpu.py --cpu  # without a GPU: this script itself

A rank per GPU; on a single GPU two ranks, a host each to NCCL (``NCCL_HOSTID``), which talk over
sockets. The bars: the plugin's begins and ends of collectives against Kineto's kernels within 5%,
the cost of a training step under 0.5% (A and B take turns), losses equal bit by bit with the plugin
and with a pause, a pause that all ranks held undisturbed, and a validation meanwhile.

With ``--cpu`` gloo stands for NCCL and tells the plugin of its all-reduces (``paceline.demo``). Its
costs are those of that stand-in, in Python, and there is no kernel to compare: no bar is judged.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from paceline.cli import nccl
from paceline.errors import PacelineError
from paceline.pause.asker import Pause, Times, pause
from paceline.sources.call_logs.joining import with_profiles
from paceline.sources.call_logs.timed_calls import TimedCalls, read_folder, timed_calls
from paceline.sources.kineto.profile import read_profile

KERNEL_BAR, COST_BAR = 0.05, 0.005
#: Steps before which nothing counts; steps that are profiled.
WARM, PROFILED = 20, (30, 50)
HIDDEN, LAYERS, BATCH = 2048, 8, 64
#: A first run tells how many steps the others have; they have three times these at least.
FIRST_STEPS = 60


def train(args: argparse.Namespace) -> None:
    """One rank: its losses and step times, and a profile where one is asked for."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    kind = "cpu" if args.cpu else "cuda"
    device = torch.device("cpu") if args.cpu else torch.device("cuda", args.gpu)
    hidden = 64 if args.cpu else HIDDEN
    if not args.cpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if args.cpu else "nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = [torch.nn.Linear(hidden, hidden) for _ in range(LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device), bucket_cap_mb=16)
    told = args.cpu and "PACELINE_RECORD" in os.environ
    communicator = _stand_in(model, world, rank) if told else None
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(7 + rank)
    losses, step_s = [], []
    activities = [torch.profiler.ProfilerActivity.CPU]
    if not args.cpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profiler = torch.profiler.profile(activities=activities)
    for step in range(args.steps):
        if args.profile and step == PROFILED[0]:
            profiler.start()
        begin = time.perf_counter()
        x = torch.randn(BATCH, hidden, generator=data).to(device)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())  # waits for the device
        step_s.append(time.perf_counter() - begin)
        if args.profile and step == PROFILED[1]:
            profiler.stop()
            profiler.export_chrome_trace(str(args.out / f"rank-{rank}.trace.json"))
        (args.out / f"rank-{rank}.step").write_text(str(step))
    version = "" if args.cpu else ".".join(map(str, torch.cuda.nccl.version()))
    result = {"losses": losses, "step_s": step_s, "nccl": version, "device": kind}
    (args.out / f"rank-{rank}.json").write_text(json.dumps(result))
    if communicator is not None:
        communicator.close()
    dist.destroy_process_group()


def _stand_in(model: Any, world: int, rank: int) -> Any:
    """Tell the plugin of the all-reduces that gloo makes, as NCCL would."""
    import torch.distributed as dist

    from paceline.demo.plugin import Communicator

    library = Path(os.environ["NCCL_PROFILER_PLUGIN"])
    communicator = Communicator(library, range(world), rank, "nccl_gpu")

    def told(state: object, bucket: Any) -> Any:
        call = communicator.collective(b"AllReduce", bucket.buffer().numel())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        call.queued()

        def ended(future: Any) -> Any:
            call.done()
            return future.value()[0].div_(world)

        return work.get_future().then(ended)

    told.__annotations__.clear()  # torch wants its own types or none
    model.register_comm_hook(None, told)
    return communicator


class Job:
    """Ranks of one run, each with its output in ``out``."""

    def __init__(self, args: argparse.Namespace, out: Path, plugin: Path | None, *more: str):
        out.mkdir()
        self.out, self.ranks = out, args.ranks
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        environment = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "WORLD_SIZE": str(args.ranks),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "Simple",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_FILE": str(out / "nccl.%h.%p"),
        }
        for name in ("NCCL_PROFILER_PLUGIN", "PACELINE_RECORD", "LD_PRELOAD"):
            environment.pop(name, None)
        if plugin is not None:
            environment |= {"NCCL_PROFILER_PLUGIN": str(plugin), "PACELINE_RECORD": str(out)}
        self.processes = []
        for rank in range(args.ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            if args.gpus == 1:
                own |= {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo"}
            command = [sys.executable, __file__, "--rank", "--out", str(out), *more]
            command += ["--steps", str(args.steps), "--gpu", str(rank % max(args.gpus, 1))]
            command += ["--cpu"] * args.cpu
            log = (out / f"rank-{rank}.log").open("w")
            self.processes.append(
                subprocess.Popen(command, env=environment | own, stdout=log, stderr=log)
            )

    def step(self) -> int:
        """The last step that all ranks have made; -1 before the first."""
        paths = [self.out / f"rank-{rank}.step" for rank in range(self.ranks)]
        texts = [path.read_text() if path.exists() else "" for path in paths]
        return min(int(text or -1) for text in texts)

    def finish(self, limit_s: float = 400.0) -> list[dict[str, Any]]:
        """What each rank tells.

        Raises:
            SystemExit: a rank failed.
        """
        try:
            for rank, process in enumerate(self.processes):
                if process.wait(limit_s):
                    text = (self.out / f"rank-{rank}.log").read_text()[-3000:]
                    raise SystemExit(f"rank {rank} ended with {process.returncode}:\n{text}")
        finally:
            for process in self.processes:
                process.kill()
                process.wait()
        texts = [(self.out / f"rank-{rank}.json").read_text() for rank in range(self.ranks)]
        return [json.loads(text) for text in texts]


def kernel_errors(calls: TimedCalls, joined: TimedCalls) -> np.ndarray:
    """[call] |plugin's duration over the profile's - 1|, of calls that both have with times."""
    plugin_s, kernel_s = calls.end_s - calls.start_s, joined.end_s - joined.start_s
    both = np.isfinite(plugin_s) & np.isfinite(kernel_s) & (kernel_s > 0)
    return np.abs(plugin_s[both] / kernel_s[both] - 1)


def compare(folder: Path, profiles: list[Path]) -> np.ndarray:
    """:func:`kernel_errors` of a folder of the plugin and profiles of the same run."""
    calls = timed_calls(*read_folder(folder))
    return kernel_errors(calls, with_profiles(calls, [read_profile(path) for path in profiles]))


def losses_of(results: list[dict[str, Any]]) -> list[list[str]]:
    return [result["losses"] for result in results]


def typical_s(results: list[dict[str, Any]]) -> float:
    """The median step of the slowest rank."""
    return max(statistics.median(result["step_s"][WARM:]) for result in results)


def paused(job: Job, hold_s: float) -> Pause:
    """Pause a job in the middle of its steps."""
    while job.step() < WARM:
        time.sleep(0.05)
        if any(process.poll() for process in job.processes):
            job.finish()
    return pause(job.out, Times(hold_s=hold_s, arrive_s=20.0, answer_s=20.0), margin=2)


def validated(job: Job) -> str:
    """Pause a job and validate its GPUs meanwhile, as a user does."""
    while job.step() < WARM:
        time.sleep(0.05)
        if any(process.poll() for process in job.processes):
            job.finish()
    small = ["--rounds", "1", "--gemm", "1024", "--for", "60s", "--arrive", "20s"]
    command = [sys.executable, "-m", "paceline", "nccl", "pause", str(job.out), "--validate"]
    done = subprocess.run([*command, *small], capture_output=True, text=True, timeout=200)
    return done.stdout + done.stderr if done.returncode == 0 else f"failed: {done.stderr}"


class Bars:
    """Lines of the result; with a GPU each is met or not."""

    def __init__(self, judged: bool) -> None:
        self.judged, self.failed = judged, 0

    def say(self, met: bool, text: str) -> None:
        self.failed += self.judged and not met
        print(f"{('MET ' if met else 'NOT ') if self.judged else ''}{text}", flush=True)


def build(folder: Path) -> Path:
    """The plugin, compiled."""
    plugin = folder / nccl.PLUGIN
    command = [os.environ.get("CC", "cc"), *nccl.FLAGS.split(), "-o", plugin, *nccl.sources(False)]
    subprocess.run(command, check=True)
    return plugin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, help="default: one per GPU, two at least")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run's steps")
    parser.add_argument("--steps", type=int, default=FIRST_STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=6, help="of A and B")
    parser.add_argument("--cpu", action="store_true", help="gloo stands for NCCL; nothing judged")
    parser.add_argument("--keep", type=Path, help="a new folder that keeps all files")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--gpu", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        train(args)
        return 0
    import torch

    args.gpus = 0 if args.cpu else torch.cuda.device_count()
    if not args.cpu and not args.gpus:
        parser.error("no GPU is here; --cpu tries this script without one")
    args.ranks = args.ranks or max(args.gpus, 2)
    folder = args.keep or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=args.keep is None)
    try:
        return run(args, folder)
    finally:
        if args.keep is None:
            shutil.rmtree(folder)


def run(args: argparse.Namespace, folder: Path) -> int:
    """All parts, one after the other; 1 where a bar is not met."""
    plugin, bars = build(folder), Bars(judged=not args.cpu)
    step_s = typical_s(Job(args, folder / "first", None).finish())
    args.steps = max(3 * FIRST_STEPS, int(args.seconds / step_s))
    a = [Job(args, folder / "a0", None).finish()]
    b = [Job(args, folder / "b0", plugin).finish()]
    print(f"{args.ranks} ranks, {args.gpus} GPUs, NCCL {a[0][0]['nccl'] or 'none: gloo'}")
    processes, notes = read_folder(folder / "b0")
    records = sum(len(process.records) for process in processes.values())
    dropped = sum(process.dropped for process in processes.values())
    bars.say(records > 0 and not dropped, f"{records:,} records, {dropped} dropped; {notes}")
    bars.say(losses_of(a[0]) == losses_of(b[0]), "losses with the plugin: equal bit by bit")

    job = Job(args, folder / "pause", plugin)
    try:
        result = paused(job, 5.0)
        text = f"pause held for {result.held_s:.1f} s; {result.why or 'undisturbed'}"
        bars.say(result.held and result.undisturbed, text)
    except PacelineError as error:
        bars.say(False, f"pause: {error}")
    bars.say(losses_of(job.finish()) == losses_of(a[0]), "losses with the pause: equal bit by bit")

    if not args.cpu:
        job = Job(args, folder / "profile", plugin, "--profile")
        job.finish()
        errors = compare(job.out, sorted(job.out.glob("*.trace.json")))
        middle, high = np.quantile(errors, (0.5, 0.95)) if len(errors) else (np.nan, np.nan)
        text = f"{len(errors)} calls against Kineto's kernels: median {middle:.2%}, 95% {high:.2%}"
        bars.say(bool(high <= KERNEL_BAR), f"{text} (bar {KERNEL_BAR:.0%})")
        job = Job(args, folder / "validate", plugin)
        text = validated(job)
        bars.say(not text.startswith("failed"), f"validation beside the job:\n{text}")
        bars.say(losses_of(job.finish()) == losses_of(a[0]), "losses with it: equal bit by bit")

    for turn in range(1, args.rounds):
        first, second = (None, plugin) if turn % 2 else (plugin, None)
        results = [
            Job(args, folder / f"turn{turn}-{place}", one).finish()
            for place, one in enumerate((first, second))
        ]
        a.append(results[turn % 2 == 0])
        b.append(results[turn % 2 == 1])
    costs = sorted(typical_s(with_) / typical_s(bare) - 1 for bare, with_ in zip(a, b, strict=True))
    text = f"cost of a step: median {statistics.median(costs):+.2%} of {len(costs)} turns"
    text += f" ({costs[0]:+.2%} to {costs[-1]:+.2%}; bar {COST_BAR:.1%})"
    bars.say(statistics.median(costs) <= COST_BAR, text)
    return int(bars.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
