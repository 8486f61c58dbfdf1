"""Memory of one microbatch in one layer and at the model's ends: kept and temporary tensors.

The rules are those of Korthikanti et al. 2022, "Reducing activation recomputation in large
transformer models". They are applied tensor by tensor, so they also cover gated MLPs, grouped-query
attention, experts and fused attention. For the paper's models the sums equal its Table 2. Further
rules come from the sources named in ``memory_rules``:

- rotated queries and keys are new tensors, and the values remain a view of the whole projection
  (Megatron-Core, ``attention.py``, ``SplitAlongDim``);
- in fp8, Transformer Engine also keeps a product's input in one byte (``linear.py``); FSDP2 with
torchao keeps it in bf16 and casts again;
- models of plain PyTorch do not fuse the gated activation: its two factors and their product are
  kept;
- an eager RMSNorm of transformers 5.24 computes in fp32; it keeps its input in fp32 and the
  normalised one.
"""

from __future__ import annotations

from paceline.model.blocks import Indexer, LatentAttention
from paceline.model.compressed import COARSE, FINE, CompressedAttention, stream_maps
from paceline.model.delta_net import DeltaNet
from paceline.model.llm import LLM
from paceline.model.mamba import Mamba
from paceline.model.memory_rules import DEFAULT_RULES, MemoryRules
from paceline.model.operators import LayerKind
from paceline.model.plan import Plan
from paceline.model.vision import VisionCost
from paceline.model.vision_tower import tower_plan


class _Sizes:
    """Bytes of the tensors of one microbatch on one GPU."""

    def __init__(self, llm: LLM, plan: Plan, rules: MemoryRules) -> None:
        self.seq = llm.seq_len
        self.tokens = plan.micro_batch * llm.seq_len / plan.cp
        self.split = plan.tp if plan.sequence_parallel else 1
        self.element = plan.element_bytes
        self.wide = self.element * self.tokens * llm.hidden  # a tensor of the residual stream
        self.torch = rules.torch_modules(plan)
        self.fp8 = plan.quantised and not self.torch
        #: Bytes of a product's input, as a share of the tensor it is made from.
        self.share = plan.input_bytes / self.element
        self.input = self.wide * self.share if self.fp8 else self.wide  # as an input of a product
        heads = llm.heads / plan.tp
        kv_heads = max(1.0, llm.kv_heads / plan.tp) if llm.latent is None else heads
        self.queries = self.element * self.tokens * heads * llm.qk_dim
        self.keys = self.element * self.tokens * kv_heads * llm.qk_dim
        self.values = self.element * self.tokens * kv_heads * llm.value_dim
        self.out = self.element * self.tokens * heads * llm.value_dim
        self.statistics = 4 * self.tokens * heads
        self.dropout = llm.dropout


def layer_activations(
    llm: LLM, kind: LayerKind, plan: Plan, rules: MemoryRules = DEFAULT_RULES
) -> tuple[float, float]:
    """Bytes that one layer keeps of one microbatch, and bytes recomputed in its backward."""
    s = _Sizes(llm, plan, rules)
    if plan.adapter_rank:
        full, cheap = _adapted_layer(llm, s, plan, rules), 0.0
    else:
        full, cheap = _whole_layer(llm, kind, s, plan, rules)
    if rules.eager(plan):
        full += _eager_excess(llm, kind, s, plan, rules)
    if plan.recompute == "full":
        return llm.streams * s.wide / s.split, full
    if plan.recompute_modules:
        return _without_modules(llm, kind, s, plan, rules, full)
    if plan.recompute == "selective":
        if rules.selective_of(plan) == "per-op" and plan.flash and kind.blocks == "*-":
            kept = _per_op(llm, s, plan)
            return min(kept, full), max(0.0, full - kept)
        recomputed = cheap if plan.flash else ("*" in kind.blocks) * _scores(llm, s, plan)
        return full - recomputed, recomputed
    return full, 0.0


def _without_modules(
    llm: LLM, kind: LayerKind, s: _Sizes, plan: Plan, rules: MemoryRules, full: float
) -> tuple[float, float]:
    """(kept, recomputed) bytes if the plan names the recomputed modules.

    All recomputed tensors of a layer are counted as present at once, in the layer's backward.
    """
    modules = frozenset(plan.recompute_modules)
    again = 0.0
    if "layernorm" in modules:
        again += len(kind.blocks) * s.input / s.split
    if "*" in kind.blocks:
        if "core_attn" in modules:
            again += _core(llm, s, plan)
        if "mla_up_proj" in modules:
            again += s.queries + s.keys + s.values
    if "-" in kind.blocks and "mlp" in modules:
        again += _dense(llm, s, plan, rules)[0]
    if kind.moe and llm.moe is not None:
        mlp, _ = _mixture(llm, s, plan)
        shared, given_shared = _experts_between(llm, s, s.tokens * llm.moe.shared_ffn / plan.tp)
        if "moe" in modules:
            again += mlp
        else:
            again += shared if "shared_experts" in modules else 0.0
            if "moe_act" in modules:
                again += _mixture(llm, s, plan)[1] - given_shared
    return full - again, again


def _core(llm: LLM, s: _Sizes, plan: Plan) -> float:
    """Bytes that a checkpoint of attention's core frees: scores, or statistics.

    Only the products' inputs stay. An output that is also stored in fp8 is freed.
    """
    if not plan.flash:
        return _scores(llm, s, plan)
    return s.statistics + (s.out if s.fp8 else 0.0)


def _whole_layer(
    llm: LLM, kind: LayerKind, s: _Sizes, plan: Plan, rules: MemoryRules
) -> tuple[float, float]:
    """(bytes kept without recomputation, the part of them that selective recomputation repeats)."""
    mask = s.tokens * llm.hidden if s.dropout else 0.0
    blocks = len(kind.blocks)
    # Inputs of the norms and of the blocks, masks of the residual dropouts.
    full = (blocks * llm.block_norms * s.wide + blocks * s.input + blocks * mask) / s.split
    if "*" in kind.blocks:
        full += _attention(llm, s, plan)
    if llm.compressed is not None:
        full += _compressed_attention(llm, llm.compressed, kind.blocks[0], s)
    if llm.streams > 1:
        # The streams before each block, its result, and fp32 maps.
        full += blocks * ((llm.streams + 1) * s.wide + 4 * s.tokens * stream_maps(llm.streams))
    mlp, act = 0.0, 0.0
    if kind.moe:
        mlp, act = _mixture(llm, s, plan)
    elif "-" in kind.blocks:
        mlp, act = _dense(llm, s, plan, rules)
    elif "M" in kind.blocks:
        mlp = _mixer(llm, s, plan)
    if "G" in kind.blocks and llm.delta is not None:
        full += _delta_net(llm.delta, s, plan)
    full += mlp
    return full, act + blocks * s.input / s.split  # outputs of the norms and of the activation


def _norm_excess(llm: LLM, s: _Sizes, plan: Plan, rules: MemoryRules) -> float:
    """Bytes that an eager RMSNorm keeps besides its input and output in 16 bits.

    It keeps the input in fp32 instead, statistics, and the normalised input unless its weight is
    frozen. Under autocast the normalised input is in fp32, too.
    """
    if llm.norm != "rmsnorm" or s.element >= 4:
        return 0.0
    normalised = 0.0 if plan.adapter_rank else (2.0 if rules.autocast(plan) else 1.0)
    return (1.0 + normalised) * s.wide + 4 * s.tokens


def _eager_excess(llm: LLM, kind: LayerKind, s: _Sizes, plan: Plan, rules: MemoryRules) -> float:
    """Bytes that a layer of transformers keeps beyond those of fused norms.

    Norms of queries and keys keep these in fp32 and normalised. Under autocast each product casts
    its own input: queries, keys and values, and both factors of a gated MLP.
    """
    again = len(kind.blocks) * llm.block_norms * _norm_excess(llm, s, plan, rules)
    if llm.qk_norm and "*" in kind.blocks and s.element < 4:
        again += (2.0 if plan.adapter_rank else 3.0) * (s.queries + s.keys)
        again += 4 * (s.queries + s.keys) / (s.element * llm.qk_dim)
    if rules.autocast(plan):
        casts = 2 * ("*" in kind.blocks) + (llm.gated and "-" in kind.blocks)
        again += casts * s.input
    return again


def _mixer(llm: LLM, s: _Sizes, plan: Plan) -> float:
    """Tensors that the scan saves, its result, and tensors of the gated norm.

    The scan saves its input and its output before the gate (mamba_ssm,
    ``MambaSplitConv1dScanCombinedFn``).
    """
    if llm.mamba is None:  # pragma: no cover (a pattern with mixers has them)
        raise AssertionError
    elements = s.tokens / plan.tp
    out = s.element * elements * llm.mamba.inner
    return s.element * elements * llm.mamba.projected + 2 * out + out * s.share


def _delta_net(delta: DeltaNet, s: _Sizes, plan: Plan) -> float:
    """Tensors that a gated DeltaNet saves.

    They are the projection with the gate, the convolution's result, and queries and keys after
    their norms. Also the inverse of each chunk's triangle, the rule's result and the gated norm's
    output.
    """
    columns = delta.projected + delta.convolved + 2 * delta.keys + delta.values * (1 + s.share)
    return s.element * s.tokens / plan.tp * (columns + delta.value_heads * delta.chunk)


def _attention(llm: LLM, s: _Sizes, plan: Plan) -> float:
    """Queries, keys, values, statistics or scores, and the input of the output projection."""
    if llm.index is not None and llm.latent is not None:
        return _sparse_attention(llm.index, llm.latent, s, llm.heads / plan.tp)
    core = s.queries + s.keys + s.values + s.out
    if llm.gated_attention:
        core += s.queries + s.out  # the gate, and the result before it
    if llm.positions == "rotary" and llm.latent is None and not s.torch:
        core += s.queries + s.keys  # the projection; the values are a view of it
    if s.fp8 and plan.flash:
        core += s.out * s.share
    core += s.statistics if plan.flash else _scores(llm, s, plan)
    if llm.latent is not None:
        core += s.element * s.tokens * ((llm.latent.q_rank or 0) + llm.latent.kv_rank)
    return core


def _sparse_attention(index: Indexer, latent: LatentAttention, s: _Sizes, heads: float) -> float:
    """Tensors that sparse attention keeps, with the operators of ``operators``.

    They are queries before and after their up-projection, the shared key, and the result before and
    after its up-projection. The indexer keeps queries, key and weights, and indices and scores of
    the kept keys in 4 bytes each.
    """
    key = latent.kv_rank + latent.rope_dim
    core = heads * (key + latent.kv_rank) + key + (latent.q_rank or 0) + latent.kv_rank
    small = (index.heads + 1) * index.head_dim
    own = s.tokens * (s.element * (core + small) + 4 * index.heads + 8 * min(index.top_k, s.seq))
    return s.queries + s.out * (1 + s.share if s.fp8 else 1) + s.statistics + own


def _compressed_attention(llm: LLM, c: CompressedAttention, kind: str, s: _Sizes) -> float:
    """Tensors that compressed attention keeps, with the operators of ``operators``.

    They are queries' latent, queries before and after their norm, the shared key before and after
    its norm, values and gates of entries, the result, the groups' output, and statistics. An
    indexer keeps its queries, its entries, the heads' weights, and indices and scores of 4 bytes.
    """
    columns = c.q_rank + 2 * llm.head_dim + c.groups * c.group_rank
    small = 0.0
    if kind == COARSE:
        columns += 2 * llm.head_dim
    elif kind == FINE:
        columns += 4 * llm.head_dim + c.index_heads * c.index_dim + 4 * c.index_dim
        small = 4 * c.index_heads + 8 * min(c.top_k, s.seq // c.fine)
    own = s.tokens * (s.element * columns + small)
    return 2 * s.queries + s.out * (1 + s.share if s.fp8 else 1) + s.statistics + own


def _scores(llm: LLM, s: _Sizes, plan: Plan) -> float:
    """Scores of attention that is not fused: softmax, and with dropout its result and mask."""
    elements = plan.micro_batch * llm.heads / plan.tp * float(llm.seq_len) ** 2
    return elements * (2 * s.element + 1 if s.dropout else s.element)


def _dense(llm: LLM, s: _Sizes, plan: Plan, rules: MemoryRules) -> tuple[float, float]:
    """(bytes of an MLP's activations, the part that its activation function outputs)."""
    through = s.element * s.tokens * llm.ffn / plan.tp
    up, result = (2 if llm.gated else 1) * through, through * s.share if s.fp8 else through
    if rules.fp8_activation and s.fp8:
        up /= 2
    if s.torch and llm.gated:
        result += through  # silu(w1 x), besides its product with w3 x
    return up + result, result


def _mixture(llm: LLM, s: _Sizes, plan: Plan) -> tuple[float, float]:
    """The same for a mixture: evenly loaded experts, shared experts and the router."""
    moe = llm.moe
    if moe is None:  # pragma: no cover (a layer kind with experts has them)
        raise AssertionError
    result = s.share if s.fp8 else 1.0  # output of the activation, as an input of a product
    routed = s.tokens / plan.tp * moe.top_k * min(1.0, moe.capacity or 1.0)
    inner = routed * moe.ffn + s.tokens * moe.shared_ffn / plan.tp
    within, given = _experts_between(llm, s, inner)
    # Tokens in the experts' order (an input of products), and the experts' outputs.
    tokens = s.element * routed * moe.width(llm.hidden) * (result + 1.0)
    # The dispatched tokens, and the experts' sum as an input of the projection out of the latent.
    tokens += s.element * s.tokens / plan.tp * moe.latent * (1.0 + result)
    router = 4 * s.tokens / plan.tp * moe.experts
    return tokens + within + router, given


def _experts_between(llm: LLM, s: _Sizes, inner: float) -> tuple[float, float]:
    """(bytes of the activation's input and result for ``inner`` elements, bytes of the result)."""
    given = s.element * (s.share if s.fp8 else 1.0) * inner
    return s.element * (2 if llm.gated else 1) * inner + given, given


def _per_op(llm: LLM, s: _Sizes, plan: Plan) -> float:
    """Bytes kept under torchtitan's per-op policy: input, fused attention, every other product.

    Of wq, wk, wv, wo, w1, w3, w2 the first, third, ... are kept (``parallelize_llama.py`` at
    ba246978, ``_custom_policy``). Two matrices of a plain MLP count as w1 and w2.
    """
    through = s.element * s.tokens * llm.ffn / plan.tp
    # With two matrices there are six products, not seven, so w2 is recomputed.
    products = s.queries + s.values + through + (s.wide / s.split if llm.gated else 0.0)
    return s.wide / s.split + products + s.out + s.statistics


def _adapted_layer(llm: LLM, s: _Sizes, plan: Plan, rules: MemoryRules) -> float:
    """LoRA on the attention's products: frozen products keep no input.

    Kept are inputs of the norms and of the adapters, the attention, and the input of the
    activation. The adapters' own tensors are thin, and a dropout mask of theirs is not counted.
    FSDP2's models keep one factor more of a gated activation, the silu's result.
    """
    factors = 2 if llm.gated else 1
    up = (factors + (s.torch and llm.gated)) * s.element * s.tokens * llm.ffn / plan.tp
    if rules.fp8_activation and s.fp8:
        up /= 2
    attention = _attention(llm, s, plan) - (s.out * s.share if s.fp8 and plan.flash else 0.0)
    # Of PEFT's adapters of queries, keys, values and projection, or of two on fused products.
    thin = (4 if s.torch else 2) * s.element * s.tokens * plan.adapter_rank
    return 3 * s.wide / s.split + attention + up + thin


def backward_work(
    llm: LLM, kind: LayerKind, plan: Plan, rules: MemoryRules = DEFAULT_RULES
) -> float:
    """Temporary bytes during the backward of one layer's MLP.

    They are the residual stream's gradient and the larger of two moments. In the activation's
    backward there are gradients of its result and input. In the first product's backward there are
    the gradients of its output and of its unreduced input. In fp8 the former is also cast and
    transposed; with sequence parallelism the input is gathered again.
    """
    s = _Sizes(llm, plan, rules)
    wide = llm.streams * s.wide / s.split
    if kind.blocks == "*":
        return s.wide / s.split + s.queries + s.keys + s.values + s.out
    if kind.blocks == "M" and llm.mamba is not None:
        return s.wide / s.split + _mixer_work(llm.mamba, s, plan)
    if kind.blocks == "G" and llm.delta is not None:
        delta = llm.delta
        channels = delta.projected + 2 * delta.convolved + 2 * delta.values
        states = 2 * delta.value_heads * delta.key_dim * delta.value_dim / delta.chunk
        wide = 4 * delta.value_heads * delta.key_dim  # for each value head: keys and gradients
        elements = channels + states + wide
        return s.wide / s.split + s.element * elements * s.tokens / plan.tp
    if kind.moe and llm.moe is not None:
        routed = s.tokens / plan.tp * llm.moe.top_k * min(1.0, llm.moe.capacity or 1.0)
        result = s.element * routed * llm.moe.ffn
        inputs = 2 * s.element * routed * llm.moe.width(llm.hidden)
    else:
        result = s.element * s.tokens * llm.ffn / plan.tp
        inputs = s.wide + (s.input if s.split > 1 else 0.0)
    gradient = (2 if llm.gated else 1) * result
    product = inputs + gradient * (1 + 2 * s.share if s.fp8 else 1)
    return wide + max(gradient + result, product)


def _mixer_work(mamba: Mamba, s: _Sizes, plan: Plan) -> float:
    """Gradients of the scan's input and result, the repeated convolution, states of the chunks.

    The states need fp32 copies, gradients, and both again in the precision of activations.
    """
    channels = mamba.projected + 2 * mamba.convolved + 2 * mamba.inner
    states = (8 + 2 * s.element) * mamba.inner * mamba.state / mamba.chunk
    return (s.element * channels + states) * s.tokens / plan.tp


def end_activations(
    llm: LLM, plan: Plan, rules: MemoryRules = DEFAULT_RULES
) -> tuple[float, float, float]:
    """Bytes of one microbatch at the model's ends: kept at the first and last, and by its loss.

    The first end keeps the embedding's dropout mask and a vision tower's tensors. The last end
    keeps inputs of the final norm and output projection, and the logits as the loss needs them
    (4.2.2). Each multi-token-prediction module keeps these again. The third value is temporary
    memory at the peak of the loss.
    """
    s = _Sizes(llm, plan, rules)
    mask = s.tokens * llm.hidden / s.split if s.dropout else 0.0
    held, peak = rules.loss_of(plan)
    logits = s.tokens * llm.padded_vocab(plan.tp) / (1 if rules.transformers else plan.tp)
    head = 2 * s.wide / s.split + held * logits
    if rules.eager(plan):
        head += _norm_excess(llm, s, plan, rules)
    mask += vision_activations(llm, plan, rules)[0]
    return mask, (1 + llm.mtp_layers) * head, (peak - held) * logits


def vision_activations(
    llm: LLM, plan: Plan, rules: MemoryRules = DEFAULT_RULES
) -> tuple[float, float]:
    """Bytes that a vision tower keeps of one microbatch, and temporary bytes of a layer's backward.

    Its layers keep the same tensors as layers of the language model. The tower also keeps pixels,
    inputs of the end norms, and inputs of the projectors' norm, products and activations. A frozen
    tower keeps only the projectors' part, and nothing under adapters.
    """
    tower = llm.vision
    if tower is None:
        return 0.0, 0.0
    if isinstance(tower, VisionCost):
        return tower.activation_bytes, 0.0
    layers, own = llm.tower, tower_plan(tower, plan)
    if layers is None or plan.adapter_rank:
        return 0.0, 0.0
    merged = own.element_bytes * plan.micro_batch * tower.image_tokens
    stream = merged * tower.merge * tower.hidden  # for the tokens that enter the projectors
    inner = sum(2 * merged * n for _, n in tower.split(llm.hidden, plan.tp)[:-1])
    norms = tower.projector_norm + tower.deepstack
    kept: float = (1 + tower.deepstack) * (stream + inner) + norms * stream
    if tower.frozen:
        return kept, 0.0
    kind = LayerKind("*-", 0)
    of_layer, again = layer_activations(layers, kind, own, rules)
    tokens = own.element_bytes * own.micro_batch
    kept += tower.layers * of_layer + tokens * tower.patches * tower.patch_inputs
    kept += tower.end_norms * tokens * tower.inner_tokens * tower.hidden
    return kept, again + backward_work(layers, kind, own, rules)
