"""Do the value tests notice a formula that is halved? Named mutants of the cost and memory model.

    python benchmarks/formula_mutants.py [--json] [NAME ...]

Each mutant is one change of one line in a copy of ``src``; it is killed if a test of the model
fails. Exits 1 if one survives, its line is not found, or the tests fail without any.
``mutation.py`` makes mutants by rule; these are the wrong formulas that a reviewer thought of.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "operators",
    "operators_torch",
    "costs",
    "memory",
    "memory_peak",
    "activations",
    "network",
    "nccl",
    "offload",
    "shards",
    "delta_net",
    "sparse",
    "hybrid",
    "packing",
    "adapters",
    "compressed",
)

#: Name -> file below ``src/paceline/model``, the text, what it becomes.
MUTANTS = {
    "Adam's traffic halved": ("costs.py", "4 * 4 + 3 * 4 + 2 + 4", "(4 * 4 + 3 * 4 + 2 + 4) / 2"),
    "loss traffic halved": ("operators.py", "22 * logits, 14 * logits", "11 * logits, 7 * logits"),
    "permute halved": (
        "operators.py",
        '"permute", 4 * elements, 4 * elements',
        '"permute", 2 * elements, 2 * elements',
    ),
    "norm traffic halved": (
        "layer_maker.py",
        "self.memory(name, 2 * size, 4 * size, kernels=1)",
        "self.memory(name, size, 2 * size, kernels=1)",
    ),
    "packed documents halved": (
        "packing.py",
        "keys += count * rest * mean_keys(kept, rest)",
        "keys += count * rest * mean_keys(kept, rest) / 2",
    ),
    "padding is attended to": ("packing.py", "return (1.0 - self.padding) * self", "return self"),
    "padding is useful": ("packing.py", "return seq_len * (1.0 - self.padding)", "return seq_len"),
    "frozen shards in fp32": ("memory.py", "whole * plan.element_bytes / 4 +", "whole +"),
    "adapters in 16 bits": ("memory.py", "+ 4.0 * adapters / plan", "+ 2.0 * adapters / plan"),
    "one adapter under FSDP": ("memory.py", "(2 * llm.hidden if is_fsdp", "(0 if is_fsdp"),
    "frozen weights not gathered": (
        "costs.py",
        "return dense + adapter_parameters(self.llm, plan), expert",
        "return adapter_parameters(self.llm, plan), 0 * expert",
    ),
    "gradients of frozen layers under FSDP": ("memory_peak.py", "adapters or most", "most"),
    "attention backward 1.5": ("attention_work.py", "2.5 * flops", "1.5 * flops"),
    "attention backward's bytes 1.5": ("attention_work.py", "2.5 * size,\n", "1.5 * size,\n"),
    "no overlap penalty of collectives": (
        "layer_costs.py",
        "duration_s - under + self.efficiency.overlap * under",
        "duration_s - under",
    ),
    "no overlap penalty of gradients": (
        "costs.py",
        "total - under + self.efficiency.overlap * under",
        "total - under",
    ),
    "unpermute halved": (
        "operators.py",
        '"unpermute", 4 * elements, 4 * elements',
        '"unpermute", 2 * elements, 2 * elements',
    ),
    "residual halved": ("layer_maker.py", "(3.0, 3.0)", "(1.5, 1.5)"),
    "activation's traffic halved": (
        "layer_maker.py",
        "through * (up + width), through * (2 * up + width)",
        "through * up, through * up",
    ),
    "embedding halved": (
        "operators.py",
        '"embedding", 2 * size, 0.0 if plan.adapter_rank else 3 * size',
        '"embedding", size, 0.0 if plan.adapter_rank else 1.5 * size',
    ),
    "rotary halved": (
        "attention_work.py",
        '"rotary", 2 * rotated, 2 * rotated',
        '"rotary", rotated, rotated',
    ),
    "fp8 casts halved": (
        "layer_maker.py",
        "passes = 2 * self.element + 2 * input_bytes",
        "passes = self.element + input_bytes",
    ),
    "gradient accumulation free": ("layer_maker.py", "2 * self.plan.grad_bytes * w", "0 * w"),
    "ring backward as forward": ("attention_work.py", "2 * travel", "travel"),
    "optimizer states halved": ("memory_rules.py", "BYTES = 12.0", "BYTES = 6.0"),
    "plain loss 8 bytes a logit": ("memory_rules.py", "(4.0, 12.0)", "(4.0, 8.0)"),
    "in-place loss 4 bytes a logit": ("memory_rules.py", "(4.0, 6.0)", "(4.0, 4.0)"),
    "FSDP gradients in bf16": ("memory.py", "FSDP_GRADIENT = 4.0", "FSDP_GRADIENT = 2.0"),
    "one gathered layer": ("memory_peak.py", "3 * weight * most", "weight * most"),
    "no words gathered": ("memory_peak.py", "whole += weight * ends", "whole += 0 * ends"),
    "NCCL buffers halved": ("memory_peak.py", "16 * 2 * (4", "16 * (4"),
    "statistics forgotten": (
        "activations.py",
        "self.statistics = 4 * self.tokens * heads",
        "self.statistics = 0.0",
    ),
    "queries kept once": ("activations.py", "core += s.queries + s.keys", "core += 0"),
    "gated activation fused": ("activations.py", "result += through", "result += 0"),
    "experts' outputs forgotten": ("activations.py", "(result + 1.0)", "result"),
    "1F1B holds one less": ("memory.py", "else p - stage", "else p - stage - 0.5"),
    "interleaved holds one round less": ("memory.py", "(v - 1) * p + 1", "(v - 2) * p + 1"),
    "no pipeline buffers": ("memory_peak.py", "held[0] -= 1", "held *= 0"),
    "latent projection halved": (
        "operators.py",
        'self.linear("latent-down", local, moe.latent, llm.hidden)',
        'self.linear("latent-down", local // 2, moe.latent, llm.hidden)',
    ),
    "permute in the wide width": (
        "operators.py",
        "elements = 2.0 * routed * width",
        "elements = 2.0 * routed * llm.hidden",
    ),
    "no wait of experts' kernels": (
        "layer_costs.py",
        "waits * self.efficiency.expert_kernel_s",
        "0 * self.efficiency.expert_kernel_s",
    ),
    "fused casts halved": (
        "layer_maker.py",
        "passes = self.element + 2 * self.plan.input_bytes",
        "passes = (self.element + 2 * self.plan.input_bytes) / 2",
    ),
    "DeltaNet's backward as its forward": (
        "delta_net.py",
        "9 * by_key + 5 * by_value + 8 * state",
        "3 * by_key + 2 * by_value + 3 * state",
    ),
    "DeltaNet moves fewer keys": ("delta_net.py", "9 * keys + 6 * values", "4 * keys + 6 * values"),
    "DeltaNet's norm halved": (
        "operators.py",
        '"delta-norm", 3 * size, 5 * size',
        '"delta-norm", 1.5 * size, 2.5 * size',
    ),
    "DeltaNet's convolution halved": (
        "operators.py",
        '"delta-conv", 2 * size, 5 * size',
        '"delta-conv", size, 2.5 * size',
    ),
    "indexer's scores halved": ("attention_work.py", "2.0 * inner * seen", "1.0 * inner * seen"),
    "indexer's top-k reads no scores": (
        "attention_work.py",
        "4 * seen + 4 * index.top_k",
        "4 * index.top_k",
    ),
    "sparse backward with four products": (
        "attention_work.py",
        "(3 * key + 2 * latent.kv_rank)",
        "(2 * key + 2 * latent.kv_rank)",
    ),
    "offload over half the link": ("layer_costs.py", "HOST_SHARE = 0.82", "HOST_SHARE = 0.41"),
    "offload waits a layer later": (
        "layer_costs.py",
        "due = layer - (self.llm.layers - n)",
        "due = layer - (self.llm.layers - n) - 1",
    ),
    "offload without a buffer": ("memory_peak.py", "OFFLOAD_BUFFERS = 1", "OFFLOAD_BUFFERS = 0"),
    "HSDP's copies exchange all": ("costs.py", "size / group.size, others", "size, others"),
    "HSDP's communicators forgotten": (
        "memory_peak.py",
        "groups += [plan.shards, plan.dp * plan.cp // plan.shards] if plan.shards else []",
        "groups += []",
    ),
    "HSDP shards over all ranks": (
        "memory.py",
        "ranks = plan.shard_ranks",
        "ranks = plan.dp * plan.cp",
    ),
    "NVFP4 as fp8": (
        "efficiency.py",
        "return self.gemm_fp8 * self.nvfp4",
        "return self.gemm_fp8",
    ),
    "NVFP4 without scales": ("plan.py", '"nvfp4": 0.5 + 1 / 16', '"nvfp4": 0.5'),
    "NVFP4 weights quantised for nothing": ("costs.py", "size += passes *", "size += 0 * passes *"),
    "no data-parallel share exposed": (
        "costs.py",
        "self.efficiency.hidden_dp * total",
        "1.0 * total",
    ),
    "kept entries of all tokens": (
        "compressed.py",
        "kept = complete_entries(self.fine, seq_len, self.top_k)\n        return mean_keys",
        "kept = complete_entries(self.fine, seq_len)\n        return mean_keys",
    ),
    "entries halved": ("compressed.py", "(full - 1) * rate / 2 +", "(full - 1) * rate / 4 +"),
    "compressed core halved": (
        "attention_work.py",
        "flops = 4.0 * tokens * wide * keys",
        "flops = 2.0 * tokens * wide * keys",
    ),
    "streams mixed as one": (
        "layer_maker.py",
        "(2 * streams + 1) * size, (3 * streams + 2) * size",
        "3 * size, 5 * size",
    ),
    "streams summed for nothing": (
        "layer_maker.py",
        "sums = (streams + 1) * size, (3 * streams + 1) * size",
        "sums = 0.0, 0.0",
    ),
    "one stream kept": ("activations.py", "(llm.streams + 1) * s.wide +", "2 * s.wide +"),
    "one stream handed on": ("costs.py", "self.llm.hidden * self.llm.streams", "self.llm.hidden"),
    "TP overlap hides at few tokens": (
        "layer_costs.py",
        "min(1.0, tokens / TP_OVERLAP_TOKENS)",
        "1.0",
    ),
}  # fmt: skip


def killed(file: str, old: str, new: str) -> bool | None:
    """Whether a test fails with the mutant; None where its line is not there."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        path = source / "paceline" / "model" / file
        text = path.read_text(encoding="utf-8")
        if old not in text:
            return None
        path.write_text(text.replace(old, new), encoding="utf-8")
        first = [test for test in TESTS if Path(file).stem.startswith(test)]
        tests = [f"tests/test_model_{test}.py" for test in dict.fromkeys((*first, *TESTS))]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        command += ["-k", "not those_of_fsdp2"]  # a job of its own, slow
        environment = {**os.environ, "PYTHONPATH": str(source)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
        return done.returncode == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try (default: all)")
    parser.add_argument("--json", action="store_true", help="print a mapping instead")
    args = parser.parse_args()
    if killed("costs.py", "", "") is not False:
        sys.exit("the tests fail without a mutant")
    outcome: dict[str, bool | None] = {}
    for name in args.names or MUTANTS:
        outcome[name] = killed(*MUTANTS[name])
        if not args.json:
            words = {True: "killed", False: "SURVIVED", None: "NOT FOUND"}
            print(f"{words[outcome[name]]:10s} {name}", flush=True)
    if args.json:
        print(json.dumps(outcome, indent=1))
    print(f"{sum(x is True for x in outcome.values())} of {len(outcome)} killed", file=sys.stderr)
    return 0 if all(outcome.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
