"""One rank of a small LoRA job under FSDP2 on gloo: bytes that it holds and exchanges, as JSON.

``python adapter_job.py RANK RANKS STORE KIND``; KIND is "peft" (Hugging Face's Llama with PEFT's
adapters) or "plain" (the same tensors in plain torch).
"""

import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

HIDDEN, HEADS, KV_HEADS, FFN, LAYERS, VOCAB, RANK = 64, 4, 2, 128, 2, 256, 8
BF16 = torch.bfloat16


class Adapted(torch.nn.Linear):
    """A frozen product with an adapter beside it."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False, dtype=BF16)
        self.down = torch.nn.Linear(inputs, RANK, bias=False)
        self.up = torch.nn.Linear(RANK, outputs, bias=False)

    def forward(self, x):
        return super().forward(x) + self.up(self.down(x))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        width = HIDDEN // HEADS
        self.q, self.o = Adapted(HIDDEN, HIDDEN), Adapted(HIDDEN, HIDDEN)
        self.k, self.v = (Adapted(HIDDEN, KV_HEADS * width) for _ in range(2))
        linear = {"bias": False, "dtype": BF16}
        self.gate, self.into = (torch.nn.Linear(HIDDEN, FFN, **linear) for _ in range(2))
        self.out = torch.nn.Linear(FFN, HIDDEN, **linear)
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(HIDDEN, dtype=BF16) for _ in range(2))

    def forward(self, x):
        y = self.norms[0](x)
        q, k, v = (
            product(y).unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2)
            for product in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.out(functional.silu(self.gate(y)) * self.into(y))


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(VOCAB, HIDDEN, dtype=BF16)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = torch.nn.RMSNorm(HIDDEN, dtype=BF16)
        self.head = torch.nn.Linear(HIDDEN, VOCAB, bias=False, dtype=BF16)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(".down." in name or ".up." in name)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def plain():
    model = Plain()
    return model, model.layers, model


def peft():
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        vocab_size=VOCAB,
        tie_word_embeddings=False,
        use_cache=False,
    )
    names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    model = get_peft_model(
        LlamaForCausalLM(config).to(BF16), LoraConfig(r=RANK, target_modules=names)
    )
    layers = model.base_model.model.model.layers
    return model, layers, lambda tokens: model(input_ids=tokens).logits


class Messages(TorchDispatchMode):
    """(operator, bytes of its whole tensor) of each collective."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if "allgather" in name or "all_gather_into" in name:
            self.sent.append(("gather", max(map(size_of, tensors(args)))))
        elif "reduce_scatter" in name:
            self.sent.append(("reduce", max(map(size_of, tensors(args)))))
        return func(*args, **(kwargs or {}))


def tensors(tree):
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def size_of(tensor):
    return tensor.numel() * tensor.element_size()


def local(tensor):
    return size_of(tensor.to_local() if hasattr(tensor, "to_local") else tensor)


def main(rank, ranks, store, kind):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model, layers, forward = {"plain": plain, "peft": peft}[kind]()
    policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32)
    mesh = dist.init_device_mesh("cpu", (ranks,))
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    tokens = torch.randint(VOCAB, (2, 16))
    with Messages() as messages:
        functional.cross_entropy(forward(tokens).float().flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    states = [x for state in optimizer.state.values() for x in state.values()]
    result = {
        "parameters": sum(map(local, parameters)),
        "gradients": sum(local(p.grad) for p in parameters if p.grad is not None),
        "optimizer": sum(local(x) for x in states if x.numel() > 1),
        "gathered": sum(size for name, size in messages.sent if name == "gather"),
        "reduced": sum(size for name, size in messages.sent if name == "reduce"),
    }
    if rank == 0:
        print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
