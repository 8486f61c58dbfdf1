"""Drawings of step graphs, one per framework: ``python benchmarks/step_graph.py``.

Each is the simulated timeline of a synthesised job (``paceline.synth``): boxes are operations, as
long as they take, from the launch of the last member on; ``docs/step-graph.md`` holds the output,
and a test compares them.
"""

from __future__ import annotations

import numpy as np

from paceline.graph.program_steps import program_steps
from paceline.graph.replica import ReplicaOps
from paceline.simulate import timeline
from paceline.synth import Layers, SlowWorker, SynthSpec
from paceline.synth.durations import make_durations
from paceline.synth.make import synth_structure
from paceline.trace import OpKind

K = OpKind

#: Kinds of a row, and what an op is called.
ROWS = {
    "compute": {
        K.FORWARD_COMPUTE: "F",
        K.BACKWARD_COMPUTE: "B",
        K.WEIGHT_COMPUTE: "W",
        K.OPTIMIZER: "O",
    },
    "gathers": {K.PARAMS_ALL_GATHER: "G"},
    "reduces": {K.GRADS_REDUCE_SCATTER: "S"},
    "copies": {K.SEPARATE_GRADS_ALL_REDUCE: "A"},
    "tensor": {K.TENSOR_COMM: "T"},
}

#: Seconds of a character.
UNIT_S = 0.01

SECONDS = dict.fromkeys(K, 0.0) | {
    K.FORWARD_COMPUTE: 0.18,
    K.BACKWARD_COMPUTE: 0.24,
    K.PARAMS_ALL_GATHER: 0.15,
    K.GRADS_REDUCE_SCATTER: 0.15,
    K.SEPARATE_GRADS_ALL_REDUCE: 0.12,
    K.TENSOR_COMM: 0.03,
    K.OPTIMIZER: 0.04,
}
PIPELINE = SECONDS | {
    K.FORWARD_COMPUTE: 0.04,
    K.BACKWARD_COMPUTE: 0.08,
    K.WEIGHT_COMPUTE: 0.04,
    K.PARAMS_ALL_GATHER: 0.0,
    K.GRADS_REDUCE_SCATTER: 0.0,
}

ONE = SynthSpec(dp=2, pp=1, microbatches=1, steps=1, noise=0.0, base_s=SECONDS)
STAGES = SynthSpec(dp=1, pp=2, microbatches=4, steps=1, noise=0.0, base_s=PIPELINE)

#: Title -> the job, (replica, stage) of the workers that are drawn, and the rows of each.
DRAWINGS = {
    "FSDP2, ZeRO 3": (
        SynthSpec(**{**vars(ONE), "layers": Layers(3, fsdp=True)}),
        ((0, 0),),
        ("compute", "gathers", "reduces"),
    ),
    "HSDP": (
        SynthSpec(**{**vars(ONE), "dp": 4, "layers": Layers(3, fsdp=True, shard=2)}),
        ((0, 0),),
        ("compute", "gathers", "reduces", "copies"),
    ),
    "DDP, ZeRO 1 and 2": (
        SynthSpec(**{**vars(ONE), "layers": Layers(4, buckets=2)}),
        ((0, 0),),
        ("compute", "reduces"),
    ),
    "Megatron, interleaved 1F1B": (
        SynthSpec(**{**vars(STAGES), "vpp": 2, "layers": Layers(1, accumulate=True)}),
        ((0, 0), (0, 1)),
        ("compute",),
    ),
    "Tensor-parallel peers": (
        SynthSpec(
            **{
                **vars(ONE),
                "dp": 1,
                "tp": 2,
                "layers": Layers(1),
                "slow_workers": (SlowWorker(0, 0, 1.5, peer=1),),
            }
        ),
        ((0, 0), (1, 0)),
        ("compute", "tensor"),
    ),
    "Split backwards: ZB-H1": (
        SynthSpec(**{**vars(STAGES), "pp": 3, "schedule": "zb-h1"}),
        ((0, 0), (0, 1), (0, 2)),
        ("compute",),
    ),
}


def drawing(title: str) -> str:
    """The lines of a drawing."""
    spec, workers, rows = DRAWINGS[title]
    structure = synth_structure(spec)
    graph = structure.graph
    durations, _ = make_durations(spec, graph)
    line = timeline(durations)
    lines = []
    for replica, stage in workers:
        for row in rows:
            kinds = ROWS[row]
            ops = np.flatnonzero((graph.pp == stage) & np.isin(graph.kind, [int(k) for k in kinds]))
            text: list[str] = []
            end_s = line.end.array[ops, 0, replica]
            took_s = durations.array[ops, 0, replica]
            for op, end, took in sorted(zip(ops, end_s, took_s, strict=True), key=lambda t: t[1]):
                first, last = round((end - took) / UNIT_S), round(end / UNIT_S)
                text += " " * (first - len(text))
                text[first:last] = _box(_name(spec, structure.variants[0], op, kinds), last - first)
            who = (
                f"stage {stage} " if spec.pp > 1 else f"rank {replica} " if len(workers) > 1 else ""
            )
            lines.append(f"{who + row:16}{''.join(text).rstrip()}".rstrip())
    return "\n".join(lines)


def program(title: str) -> str:
    """The launches and waits (``|``) of the first worker that is drawn."""
    spec, ((_, stage), *_), _ = DRAWINGS[title]
    (ops,) = synth_structure(spec).variants
    letters = {kind: letter for kinds in ROWS.values() for kind, letter in kinds.items()}
    letters |= {K.OPTIMIZER_CLIP_MAIN_GRAD: "N", K.GC: "", K.LAYERNORM_GRADS_ALL_REDUCE: ""}
    letters |= {K.FORWARD_SEND: "s", K.BACKWARD_SEND: "s"}
    letters |= {K.FORWARD_RECV: "r", K.BACKWARD_RECV: "r"}
    words = []
    for step in program_steps(ops, stage):
        op = step if step >= 0 else ~step
        kind = OpKind(int(ops.kind[op]))
        letter = letters.get(kind, "")
        number = ops.seq[op] if spec.pp > 1 else ops.part[op]
        if letter:
            words.append(
                ("|" if step < 0 else "") + letter + ("" if letter in "NO" else str(number))
            )
    return " ".join(words)


def _name(spec: SynthSpec, ops: ReplicaOps, op: int, kinds: dict[OpKind, str]) -> str:
    kind = OpKind(int(ops.kind[op]))
    if kind == K.OPTIMIZER:
        return kinds[kind]
    if spec.pp > 1:  # whole passes: microbatch and, of several, chunk
        chunk = "abcd"[int(ops.chunk[op])] if spec.vpp > 1 else ""
        return f"{kinds[kind]}{ops.microbatch[op]}{chunk}"
    return f"{kinds[kind]}{ops.part[op]}"


def _box(name: str, length: int) -> str:
    """A box of so many characters: ``[F0--``, cut where it is short."""
    return f"[{name}".ljust(length, "-")[:length]


def main() -> None:
    for title in DRAWINGS:
        print(f"{title}\n\n{program(title)}\n\n{drawing(title)}\n")


if __name__ == "__main__":
    main()
