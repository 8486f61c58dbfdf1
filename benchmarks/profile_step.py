"""Does a profile taken on this CPU predict real training steps of other sizes? (needs torch)

    python benchmarks/profile_step.py            # about 3 minutes
    python benchmarks/profile_step.py --quick    # about 1 minute, a coarser profile

Profiles the operators of tiny GPTs (hidden 256, 512 and 768, 128 and 256 tokens), writes and reads
the file, and predicts the step of models whose hidden size, layers and sequence length were NOT
profiled. Beside it the same step for real: a GPT in plain torch below, one process, fp32, forward,
backward, gradient norm and AdamW. One thread, since the machine may be busy; a step is the median
of repeats before and after the profile, those left out during which another job had the core.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from paceline.model.costs import CostModel
from paceline.model.llm import LLM
from paceline.model.plan import Plan
from paceline.model.profile import load_profile, save_profile
from paceline.model.profile_cost import cluster_from_profile, cost_from_profile
from paceline.model.profiler import QUICK, Effort, Shapes, made_up, take_profile

VOCAB = 4096
HEAD = 64
PROFILED = {"hidden": (256, 512, 768), "seq_len": (128, 256), "micro_batch": (1, 2, 4)}
#: hidden, layers, tokens of a sequence, samples of the step.
SIZES = ((384, 6, 192, 2), (640, 4, 160, 3), (320, 10, 224, 1))
#: Wider and longer than anything profiled: the roofline is scaled, and the prediction says so.
BEYOND = (1024, 3, 384, 1)
LIMIT = 0.20
PARTS = ("  forward", "  backward", "  optimizer")


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        heads = (b, s, h // HEAD, HEAD)
        q, k, v = (t.view(heads).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(h, -1))
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        a = self.projection(a.transpose(1, 2).reshape(b, s, h))
        x = x + functional.dropout(a, 0.1)
        m = self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + functional.dropout(m, 0.1)


class Gpt(nn.Module):
    def __init__(self, hidden: int, layers: int, seq_len: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCAB, hidden), nn.Embedding(seq_len, hidden)
        self.blocks = nn.ModuleList([Block(hidden) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden)

    def forward(self, index: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.words(index) + self.positions.weight, 0.1)
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.words.weight)
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def measured_parts(
    hidden: int, layers: int, seq_len: int, batch: int, repeats: int
) -> list[list[float]]:
    """[repeat][forward, backward, optimizer] seconds of real steps."""
    torch.manual_seed(0)
    model = Gpt(hidden, layers, seq_len)
    adam = torch.optim.AdamW(model.parameters())
    found: list[list[float]] = []
    for i in range(3 * repeats + 3):
        # New tokens each step: once a sequence is learnt by heart, gradients of nothing fill Adam's
        # moments with denormal numbers, which x86 multiplies many times slower.
        index, target = torch.randint(0, VOCAB, (2, batch, seq_len))
        busy = -time.process_time()
        times = [time.perf_counter()]
        loss = model(index, target)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        times.append(time.perf_counter())
        busy += time.process_time()
        if i >= 3 and busy > 0.95 * (times[-1] - times[0]):  # else another job had the core
            found.append([b - a for a, b in pairwise(times)])
        if len(found) == repeats:
            break
    return found


def predicted_parts(
    file: Path, hidden: int, layers: int, seq_len: int, batch: int
) -> tuple[list[float], list[str]]:
    """Forward, backward and optimizer of the prediction, and what lay outside the profile."""
    cluster = cluster_from_profile(load_profile(file))
    cost, warnings = cost_from_profile(file, cluster)
    llm = LLM(
        name="real",
        layers=layers,
        hidden=hidden,
        heads=hidden // HEAD,
        vocab=VOCAB,
        seq_len=seq_len,
    )
    plan = Plan(micro_batch=batch, global_batch=batch, precision="fp32")
    costs = CostModel(llm, cluster, cost).costs(plan)
    parts = [costs.forward_s.sum(), costs.backward_s.sum(), costs.optimizer_s.sum()]
    return [float(part) for part in parts], warnings + cost.outside


def profile_to(file: Path, quick: bool) -> None:
    models = [
        llm
        for hidden in PROFILED["hidden"]
        for seq_len in PROFILED["seq_len"]
        for llm in made_up(hidden, seq_len, VOCAB)[:1]
    ]
    shapes = Shapes(models=tuple(models), micro_batch=PROFILED["micro_batch"], precision="fp32")
    begin = time.perf_counter()
    profile = take_profile(shapes, "cpu", QUICK if quick else Effort(repeats=11))
    save_profile(profile, file)
    print(
        f"{profile.device}, torch {profile.torch}: {len(profile.timings)} operators in "
        f"{time.perf_counter() - begin:.0f} s, {file.stat().st_size / 1e3:.0f} kB; fastest product "
        f"{profile.peak_flops / 1e9:.0f} GFLOP/s, copy {profile.memory_bandwidth / 1e9:.1f} GB/s"
    )


def compare(file: Path, size: tuple[int, int, int, int], measured: list[list[float]]) -> float:
    """Print both; returns the relative error of the step."""
    real = [statistics.median(part) for part in zip(*measured, strict=True)]
    step = statistics.median(sum(parts) for parts in measured)
    parts, outside = predicted_parts(file, *size)
    name = "hidden {} layers {} seq {} batch {}".format(*size)
    rows = [(name, step, sum(parts)), *zip(PARTS, real, parts, strict=True)]
    for word, a, b in rows:
        print(f"{word:<38}{a * 1e3:>6.1f} ms{b * 1e3:>8.1f} ms{b / a - 1:>+8.1%}")
    for line in outside:
        print(f"  outside the profile: {line}")
    return sum(parts) / step - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 9 if args.quick else 25
    measured = {size: measured_parts(*size, repeats) for size in (*SIZES, BEYOND)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cpu.profile.json"
        profile_to(file, args.quick)
        for size, parts in measured.items():
            parts += measured_parts(*size, repeats)
        print(f"{'':37}{'measured':>10}{'predicted':>11}{'error':>8}")
        worst = max([abs(compare(file, size, measured[size])) for size in SIZES])
        compare(file, BEYOND, measured[BEYOND])
    print(f"largest error between profiled shapes {worst:.1%} (limit {LIMIT:.0%})")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
