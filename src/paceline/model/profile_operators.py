"""The operators in PyTorch: functions that run one operator once.

They run eagerly, as in a plain PyTorch model: nothing is compiled or fused by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.model.llm import LLM
from paceline.model.operators import Operator
from paceline.model.plan import Plan
from paceline.model.profile_cost import operator_class

Thunk = Callable[[], Any]

_DROPOUT = 0.1


class Case(NamedTuple):
    """An operator with its model and plan, which determine its tensors."""

    op: Operator
    llm: LLM
    plan: Plan
    parameters: int = 0  # of the optimizer


class Tensors:
    """Makes the inputs of operators on one device."""

    def __init__(self, torch: Any, device: str, precision: str) -> None:
        self.torch, self.device = torch, device
        self.dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[
            precision
        ]

    def __call__(self, *shape: int, grad: bool = False, dtype: Any = None) -> Any:
        """Normally distributed numbers; with ``grad``, their gradient is computed."""
        tensor = self.torch.randn(*shape, device=self.device, dtype=dtype or self.dtype)
        return tensor.requires_grad_(grad)

    def whole(self, below: int, *shape: int) -> Any:
        """Whole numbers from 0 to below ``below``."""
        return self.torch.randint(0, below, shape, device=self.device)


#: A forward pass and the inputs whose gradients its backward pass computes.
_Differentiable = tuple[Thunk, list[Any]]


def thunk_of(case: Case, make: Tensors) -> Thunk | None:
    """A function that runs the operator once; None if Paceline has no implementation."""
    op = case.op
    if op.part == "gemm":
        return _product(case, make)
    if op.part == "attention" and op.n:
        return _batched(op, make)
    if op.name == "optimizer":
        return _optimizer(case, make)
    kind = operator_class(op)
    backward = kind.endswith("-backward")
    builder = _BUILDERS.get(kind.removesuffix("-backward"))
    if builder is None:
        return None
    forward, inputs = builder(case, make)
    if not backward:
        return forward
    torch = make.torch
    out = forward()
    grad = torch.ones_like(out) if out.ndim == 0 else torch.randn_like(out)
    run = torch.autograd.grad
    if kind == "residual-backward":  # two branches: their gradients add up
        return lambda: grad + run(out, inputs, grad, retain_graph=True)[-1]
    return lambda: run(out, inputs, grad, retain_graph=True)


def _product(case: Case, make: Tensors) -> Thunk:
    """A linear layer: y = x w^T + b, the gradient of x, or the accumulated gradients of w and b."""
    op, functional = case.op, make.torch.nn.functional
    bias = case.llm.bias and not op.name.startswith(("head", "router"))
    if op.name.endswith("-wgrad"):
        grad, x = make(op.k, op.n), make(op.k, op.m)
        main = make(op.n, op.m, dtype=make.torch.float32)

        def gather() -> Any:
            if make.dtype == main.dtype:
                main.addmm_(grad.t(), x)
            else:
                main.add_(grad.t() @ x)
            return grad.sum(0) if bias else None

        return gather
    if op.name.endswith("-dgrad"):
        grad, w = make(op.m, op.k), make(op.k, op.n)
        return lambda: grad @ w
    x, w = make(op.m, op.k), make(op.n, op.k)
    b = make(op.n) if bias else None
    return lambda: functional.linear(x, w, b)


def _batched(op: Operator, make: Tensors) -> Thunk:
    """A product of the unfused core of attention, with transposed operands as in the pass."""
    torch = make.torch
    a = make(op.batch, op.m, op.k)
    if op.name.endswith("-wgrad"):
        a = make(op.batch, op.k, op.m).transpose(1, 2)
    b = make(op.batch, op.k, op.n)
    if op.name in ("core-scores", "core-values-dgrad"):
        b = make(op.batch, op.n, op.k).transpose(1, 2)
    return lambda: torch.bmm(a, b)


def _optimizer(case: Case, make: Tensors) -> Thunk:
    """Norm of the gradients, AdamW in fp32, and the cast to 16-bit weights if there are any."""
    torch, width = make.torch, case.llm.hidden
    rows = 4 * width
    full, remainder = divmod(max(case.parameters, width), rows * width)
    sizes = [(rows, width)] * full + ([(max(1, remainder // width), width)] if remainder else [])
    master = [make(*size, grad=True, dtype=torch.float32) for size in sizes]
    for weight in master:
        weight.grad = torch.randn_like(weight)
    on_gpu = make.device == "cuda"
    adam = torch.optim.AdamW(master, fused=True) if on_gpu else torch.optim.AdamW(master)
    half = [weight.detach().to(make.dtype) for weight in master]

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(master, 1.0)
        adam.step()
        if make.dtype != torch.float32:
            with torch.no_grad():
                torch._foreach_copy_(half, master)

    return step


def _tokens(case: Case) -> int:
    return case.plan.micro_batch * case.llm.seq_len // case.plan.cp


def _norm(case: Case, make: Tensors) -> _Differentiable:
    llm, functional = case.llm, make.torch.nn.functional
    x, scale = make(_tokens(case), llm.hidden, grad=True), make(llm.hidden, grad=True)
    if llm.norm == "rmsnorm":
        return lambda: functional.rms_norm(x, (llm.hidden,), scale), [x, scale]
    shift = make(llm.hidden, grad=True)
    return lambda: functional.layer_norm(x, (llm.hidden,), scale, shift), [x, scale, shift]


def _activation(case: Case, make: Tensors) -> _Differentiable:
    """GELU or SwiGLU; rows and width follow from the bytes, which experts and shards divide."""
    llm, functional = case.llm, make.torch.nn.functional
    element = case.plan.element_bytes
    backward = case.op.name.endswith("-backward")
    through = (5 if backward else 3) if llm.gated else (3 if backward else 2)
    elements = max(1, round(case.op.bytes / element / through))
    rows = min(_tokens(case), elements)
    width = max(1, elements // rows)
    if not llm.gated:
        x = make(rows, width, grad=True)
        return lambda: functional.gelu(x, approximate="tanh"), [x]
    both = make(rows, 2 * width, grad=True)

    def gate() -> Any:
        a, b = both.chunk(2, dim=-1)
        return functional.silu(a) * b

    return gate, [both]


def _residual(case: Case, make: Tensors) -> _Differentiable:
    llm, functional = case.llm, make.torch.nn.functional
    x = make(_tokens(case), llm.hidden)
    y = make(_tokens(case), llm.hidden, grad=True)
    if llm.bias and llm.norm == "layernorm":
        return lambda: x + functional.dropout(y, _DROPOUT), [y]
    return lambda: x + y, [y]


def _dropout(case: Case, make: Tensors) -> _Differentiable:
    x = make(_tokens(case), case.llm.hidden, grad=True)
    return lambda: make.torch.nn.functional.dropout(x, _DROPOUT), [x]


def _rotary(case: Case, make: Tensors) -> _Differentiable:
    """Queries and keys rotated by halves, each in its own tensor."""
    torch, llm, tp = make.torch, case.llm, case.plan.tp
    heads, kv_heads = llm.heads // tp, max(1, llm.kv_heads // tp)
    width = llm.qk_dim - llm.qk_dim % 2
    x = make(_tokens(case), heads + kv_heads, width, grad=True)
    cos, sin = make(_tokens(case), 1, width), make(_tokens(case), 1, width)

    def rotate() -> Any:
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    return rotate, [x]


def _qk_norm(case: Case, make: Tensors) -> _Differentiable:
    llm, tp = case.llm, case.plan.tp
    heads = llm.heads // tp + max(1, llm.kv_heads // tp)
    x, scale = make(_tokens(case), heads, llm.qk_dim, grad=True), make(llm.qk_dim, grad=True)
    return lambda: make.torch.nn.functional.rms_norm(x, (llm.qk_dim,), scale), [x, scale]


def _fused_attention(case: Case, make: Tensors) -> _Differentiable:
    """Fused attention from the output of qkv to the input of the projection."""
    llm, plan, functional = case.llm, case.plan, make.torch.nn.functional
    heads, kv_heads = llm.heads // plan.tp, max(1, llm.kv_heads // plan.tp)
    shape = (plan.micro_batch, llm.seq_len, -1)
    if llm.latent is not None:
        kv_heads = heads
    widths = [heads * llm.qk_dim, kv_heads * llm.qk_dim, kv_heads * llm.value_dim]
    qkv = make(_tokens(case), sum(widths), grad=True)
    grouped = {"enable_gqa": True} if kv_heads != heads else {}

    def attend() -> Any:
        q, k, v = qkv.view(*shape).split(widths, dim=-1)
        q = q.unflatten(-1, (heads, llm.qk_dim)).transpose(1, 2)
        k = k.unflatten(-1, (kv_heads, llm.qk_dim)).transpose(1, 2)
        v = v.unflatten(-1, (kv_heads, llm.value_dim)).transpose(1, 2)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
        return out.transpose(1, 2).reshape(_tokens(case), heads * llm.value_dim)

    return attend, [qkv]


def _softmax(case: Case, make: Tensors) -> _Differentiable:
    """Causal mask and softmax of the scores in memory."""
    torch, llm, plan = make.torch, case.llm, case.plan
    s = llm.seq_len
    scores = make(plan.micro_batch, llm.heads // plan.tp, s, s, grad=True)
    mask = torch.full((s, s), float("-inf"), device=make.device, dtype=make.dtype).triu(1)
    return lambda: torch.softmax(scores + mask, dim=-1), [scores]


def _scores_dropout(case: Case, make: Tensors) -> _Differentiable:
    llm, plan = case.llm, case.plan
    x = make(plan.micro_batch * llm.heads // plan.tp, llm.seq_len, llm.seq_len, grad=True)
    return lambda: make.torch.nn.functional.dropout(x, _DROPOUT), [x]


def _embedding(case: Case, make: Tensors) -> _Differentiable:
    llm = case.llm
    rows = llm.padded_vocab(case.plan.tp) // case.plan.tp
    table, index = make(rows, llm.hidden, grad=True), make.whole(rows, _tokens(case))
    return lambda: make.torch.nn.functional.embedding(index, table), [table]


def _positions(case: Case, make: Tensors) -> _Differentiable:
    llm, b = case.llm, case.plan.micro_batch
    x = make(b, llm.seq_len, llm.hidden)
    table = make(llm.seq_len, llm.hidden, grad=True)
    return lambda: x + table, [table]


def _loss(case: Case, make: Tensors) -> _Differentiable:
    columns = case.llm.padded_vocab(case.plan.tp) // case.plan.tp
    logits, target = make(_tokens(case), columns, grad=True), make.whole(columns, _tokens(case))
    return lambda: make.torch.nn.functional.cross_entropy(logits.float(), target), [logits]


def _routed(case: Case) -> tuple[int, int, int, int]:
    """Sizes of a rank's routing: tokens, rows for its experts, experts, experts per token."""
    moe = case.llm.moe
    if moe is None:  # pragma: no cover (only mixtures have such operators)
        raise AssertionError
    local = max(1, _tokens(case) // case.plan.tp)
    rows = max(1, round(local * moe.top_k * min(1.0, moe.capacity or 1.0)))
    return local, rows, moe.experts, moe.top_k


def _router(case: Case, make: Tensors) -> _Differentiable:
    """The weights of the chosen experts, and the order of the rows by expert."""
    torch = make.torch
    local, _, experts, top_k = _routed(case)
    logits = make(local, experts, grad=True)

    def route() -> Any:
        weights, expert = torch.topk(torch.softmax(logits.float(), dim=-1), top_k, dim=-1)
        torch.argsort(expert.flatten())
        return weights / weights.sum(dim=-1, keepdim=True)

    return route, [logits]


def _permute(case: Case, make: Tensors) -> _Differentiable:
    """Copies tokens into the order of the experts."""
    local, rows, _, _ = _routed(case)
    x, index = make(local, case.llm.hidden, grad=True), make.whole(local, rows)
    return lambda: x.index_select(0, index), [x]


def _unpermute(case: Case, make: Tensors) -> _Differentiable:
    """Adds the experts' weighted rows to their tokens."""
    local, rows, _, _ = _routed(case)
    y, weight = make(rows, case.llm.hidden, grad=True), make(rows, 1, grad=True)
    index, zeros = make.whole(local, rows), make(local, case.llm.hidden)
    return lambda: zeros.index_add(0, index, y * weight), [y, weight]


_BUILDERS: dict[str, Callable[[Case, Tensors], _Differentiable]] = {
    "norm": _norm,
    "activation": _activation,
    "residual": _residual,
    "rotary": _rotary,
    "qk-norm": _qk_norm,
    "core-attention": _fused_attention,
    "core-softmax": _softmax,
    "core-dropout": _scores_dropout,
    "embedding": _embedding,
    "embedding-positions": _positions,
    "embedding-dropout": _dropout,
    "loss": _loss,
    "router-topk": _router,
    "permute": _permute,
    "unpermute": _unpermute,
}
