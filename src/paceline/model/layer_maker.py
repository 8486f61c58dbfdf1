"""Builder of layers from products, element-wise kernels and tensor-parallel messages."""

from __future__ import annotations

from paceline.model.compressed import stream_maps
from paceline.model.llm import LLM
from paceline.model.operator_types import Collective, LayerWork, Operator
from paceline.model.plan import Plan


class WorkMaker:
    """Collects the work of one layer."""

    def __init__(self, llm: LLM, plan: Plan) -> None:
        self.llm, self.plan = llm, plan
        self.work = LayerWork()
        self.tokens = plan.micro_batch * llm.seq_len // plan.cp
        # Sequence parallelism splits what tensor parallelism repeats.
        self.split = plan.tp if plan.sequence_parallel else 1
        self.dropout = llm.dropout
        self.wide = "bf16" if plan.quantised else plan.precision
        self.element = plan.element_bytes  # bytes of an activation

    def memory(self, name: str, forward: float, backward: float, kernels: int = 1) -> None:
        """Element-wise kernels that move these bytes (given for 2-byte elements)."""
        scale = self.element / 2
        if forward:
            self.work.forward.append(
                Operator(name, "memory", 0.0, forward * scale, kernels=kernels)
            )
        if backward:
            self.work.backward.append(
                Operator(f"{name}-backward", "memory", 0.0, backward * scale, kernels=kernels)
            )

    def collective(self, forward: Collective | None, backward: Collective | None) -> None:
        """Messages of a forward and of a backward pass; none for groups of one rank."""
        if self.plan.tp == 1 and (forward or backward).part == "tp":  # type: ignore[union-attr]  # one of them is given
            return
        if forward is not None:
            self.work.forward.append(forward)
        if backward is not None:
            self.work.backward.append(backward)

    def norm(self, name: str) -> None:
        """LayerNorm or RMSNorm: read and write; backward reads input and gradient, writes one."""
        size = 2.0 * self.tokens * self.llm.hidden / self.split
        self.memory(name, 2 * size, 4 * size, kernels=1)

    def residual(self, name: str) -> None:
        """Bias, dropout and residual addition in one kernel (GPT), or the addition alone."""
        size = 2.0 * self.tokens * self.llm.hidden / self.split
        forward, backward = (3.5, 5.5) if self.dropout else (3.0, 3.0)
        self.memory(name, forward * size, backward * size)

    def collapse(self, name: str) -> None:
        """Residual streams become a block's input: their norm, the maps, a weighted sum.

        A backward adds its gradient to that of the streams. Sinkhorn's iterations on a few numbers
        per token are taken to be part of a kernel (fused mHC of Megatron-Bridge, 067f987).
        """
        streams, hidden = self.llm.streams, self.llm.hidden
        size = 2.0 * self.tokens * hidden
        self.memory(f"streams-norm-{name}", streams * size, 2 * streams * size)
        maps, k = stream_maps(streams), streams * hidden
        self.linear(f"streams-maps-{name}", self.tokens, maps, k, precision=self.wide)
        sums = (streams + 1) * size, (3 * streams + 1) * size
        self.memory(f"streams-sum-{name}", *sums)

    def mix(self, name: str) -> None:
        """A block's result and the streams become the next streams."""
        streams = self.llm.streams
        size = 2.0 * self.tokens * self.llm.hidden
        self.memory(f"streams-mix-{name}", (2 * streams + 1) * size, (3 * streams + 2) * size)

    def enter(self, name: str) -> None:
        """Messages where activations enter tensor-parallel operators (Megatron's f, or g-bar)."""
        self._tensor_parallel(name, into=True)

    def leave(self, name: str) -> None:
        """Messages where partial results leave them: Megatron's g, or its g-bar's conjugate."""
        self._tensor_parallel(name, into=False)

    def _tensor_parallel(self, name: str, *, into: bool) -> None:
        size = float(self.element * self.tokens * self.llm.hidden)
        behind = "*" if self.plan.overlap_tp else ""
        if self.plan.sequence_parallel:
            first, second = ("all_gather", "reduce_scatter")[:: 1 if into else -1]
            self.collective(
                Collective(name, "tp", first, size, behind),
                Collective(f"{name}-backward", "tp", second, size, behind),
            )
            # The input was kept in shards, so it is gathered again for the weights' gradient.
            if into and not self.plan.adapter_rank:
                repeated = Collective(f"{name}-again", "tp", "all_gather", size, "*")
                self.collective(None, repeated)
        elif into:
            # The all-reduce of the input's gradient runs beside the weights' gradient.
            beside = Collective(f"{name}-backward", "tp", "all_reduce", size, behind)
            self.collective(None, beside)
        else:
            self.collective(Collective(name, "tp", "all_reduce", size, behind), None)

    def linear(
        self,
        name: str,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        precision: str = "",
        detached: bool = False,
    ) -> None:
        """A product y = x w: one product forward, two backward (gradients of x and of w).

        A batch of experts has one kernel per expert (Transformer Engine's GroupedLinear), unless
        they are fused. A batch of heads is one kernel. A ``detached`` input gets no gradient.
        """
        of_experts = name.startswith("expert-")
        fused = of_experts and self.plan.fused_experts
        kernels = batch if of_experts and not fused else 1
        precision = precision or self.plan.precision
        quantised = precision == self.plan.precision and self.plan.quantised
        input_bytes = self.plan.input_bytes if quantised else self.element
        flops = 2.0 * m * n * k * batch
        x, w, y = m * k * batch, k * n * batch, m * n * batch
        if quantised and fused:
            self._cast_fused(name, x, y)
        elif quantised:
            # Two reads (maximum; scale and cast) and two writes (the second one transposed). NVFP4
            # with a Hadamard transform has as many passes (Transformer Engine d0067d0,
            # ``NVFP4Quantizer::quantize_impl``).
            passes = 2 * self.element + 2 * input_bytes
            self.memory(f"{name}-cast", passes * x, passes * y, kernels=2 * batch)
        grads = 2 * self.plan.grad_bytes * w  # accumulated in place
        self.work.forward.append(
            Operator(
                name,
                "gemm",
                flops,
                input_bytes * (x + w) + self.element * y,
                m,
                n,
                k,
                batch,
                kernels,
                precision,
            )
        )
        dgrad = input_bytes * (y + w) + self.element * x
        shape = (m, k, n, batch, kernels, precision)
        if not detached:
            self.work.backward.append(Operator(f"{name}-dgrad", "gemm", flops, dgrad, *shape))
        if self.plan.adapter_rank:  # frozen
            return
        self.work.backward.append(
            Operator(
                f"{name}-wgrad",
                "gemm",
                flops,
                input_bytes * (x + y) + grads,
                k,
                n,
                m,
                batch,
                kernels,
                precision,
            )
        )

    def _cast_fused(self, name: str, x: int, y: int) -> None:
        """Casts of fused experts' inputs in one kernel; products write values already cast.

        Block scales need no maximum of the whole tensor: one read, two writes.
        """
        passes = self.element + 2 * self.plan.input_bytes
        if name.endswith("-up"):
            self.memory(f"{name}-cast", passes * x, 0.0)
        else:
            self.memory(f"{name}-cast", 0.0, passes * y)

    def adapter(self, name: str, n: int, k: int) -> None:
        """A LoRA adapter beside a product: down to its rank, up again, and an addition.

        Thin products are bound by bytes: the input twice (forward, and gradient of the down
        projection), and the output three times for the addition.
        """
        if not self.plan.adapter_rank:
            return
        x, y = 2.0 * self.tokens * k, 2.0 * self.tokens * n
        self.memory(f"{name}-adapter", x + 3 * y, 3 * x + 2 * y, kernels=4)

    def mlp(self, name: str, tokens: int, width: int, *, batch: int = 1, hidden: int = 0) -> None:
        """Two linears (three when gated) around the activation; ``batch`` experts at once."""
        llm, hidden = self.llm, hidden or self.llm.hidden
        up = 2 * width if llm.gated else width
        self.linear(f"{name}-up", tokens, up, hidden, batch=batch)
        if name != "expert" or not self.plan.fused_experts:
            through = 2.0 * tokens * batch
            self.memory(f"{name}-activation", through * (up + width), through * (2 * up + width))
        self.linear(f"{name}-down", tokens, hidden, width, batch=batch)
