"""Vision towers: parameters, FLOPs and kept tensors as torch counts them; frozen and given ones.

The frozen numbers are those of transformers 5.23: parameters on torch's meta device, FLOPs by
``torch.utils.flop_counter`` of the eager modules on the CPU, forward and backward.
"""

import json
from dataclasses import replace

import pytest

from paceline.cli.main import run
from paceline.errors import ModelError, PlanError
from paceline.model.activations import vision_activations
from paceline.model.cluster_presets import cluster_preset
from paceline.model.costs import CostModel
from paceline.model.hf import from_hf
from paceline.model.job_yaml import load_job
from paceline.model.llm import LLM
from paceline.model.memory import (
    frozen_parameters,
    place_parameters,
    stage_states,
    vision_share,
)
from paceline.model.memory_peak import gathered_bytes, vision_excess
from paceline.model.memory_rules import MemoryRules
from paceline.model.operators import Operator
from paceline.model.plan import Plan
from paceline.model.plan_check import check
from paceline.model.vision import VisionCost, VisionTower
from paceline.model.vision_work import vision_work
from paceline.plan.launch.files import launch_text
from paceline.plan.predict import predict

TEXT = {
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "head_dim": 32, "intermediate_size": 256, "vocab_size": 100, "max_position_embeddings": 256,
}  # fmt: skip
QWEN_SMALL = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "text_config": TEXT,
    "vision_config": {
        "depth": 3, "hidden_size": 64, "num_heads": 4, "intermediate_size": 96,
        "out_hidden_size": 128, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64,
    },
}  # fmt: skip
LLAMA_SMALL = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": TEXT
    | {"intermediate_size_mlp": 256, "num_local_experts": 2, "num_experts_per_tok": 1},
    "vision_config": {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 256, "vision_output_dim": 96, "projector_input_dim": 96,
        "projector_output_dim": 96, "image_size": 112, "patch_size": 14,
    },
}  # fmt: skip
QWEN_8B = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "tie_word_embeddings": False,
    "text_config": {
        "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
        "vocab_size": 151936, "max_position_embeddings": 262144,
    },
    "vision_config": {
        "depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304,
        "out_hidden_size": 4096, "deepstack_visual_indexes": [8, 16, 24],
        "num_position_embeddings": 2304,
    },
}  # fmt: skip
SCOUT = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192,
        "intermediate_size_mlp": 16384, "vocab_size": 202048, "max_position_embeddings": 131072,
        "num_local_experts": 16, "num_experts_per_tok": 1, "attention_chunk_size": 8192,
    },
    "vision_config": {
        "hidden_size": 1408, "num_hidden_layers": 34, "num_attention_heads": 16,
        "intermediate_size": 5632, "vision_output_dim": 4096, "image_size": 336, "patch_size": 14,
    },
}  # fmt: skip
SMALL = LLM(name="small", layers=8, hidden=1024, heads=16, vocab=50304, seq_len=2048)
TOWER = VisionTower(
    layers=6, hidden=512, heads=8, patches=1024, images=2, merge=4, projector=(2048,)
)
H100 = cluster_preset("h100")


def with_vision(vision):
    return replace(SMALL, vision=vision)


@pytest.mark.parametrize(
    ("content", "tower", "whole"),
    [(QWEN_8B, 576388336, 8767123696), (SCOUT, 871932416, 108641793536)],
)
def test_parameters_are_those_of_transformers(content, tower, whole):
    llm = from_hf(content, images=2, seq_len=8192)
    assert (llm.vision_parameters, llm.parameters) == (tower, whole)
    assert llm.left_out == ""
    held, experts = place_parameters(llm, Plan(global_batch=1))
    padding = (llm.padded_vocab(1) - llm.vocab) * llm.hidden
    assert held.sum() + experts.sum() == whole + padding * (1 if llm.tied else 2)


@pytest.mark.parametrize(
    ("content", "forward", "whole"),
    [(QWEN_SMALL, 72351744, 191889408), (LLAMA_SMALL, 57411072, 162599424)],
)
def test_flops_are_those_that_torch_counts(content, forward, whole):
    """Two images of 64 patches; by the operators, too, where attention is not fused."""
    llm = from_hf(content, images=2, seq_len=64)
    assert llm.vision_flops == (whole, forward)
    counted = vision_work(llm, Plan(global_batch=1, flash=False)).flops()
    assert counted == (forward, whole - forward)
    # Fused attention has 2.5 times the forward's FLOPs backward instead of 2.
    fused = vision_work(llm, Plan(global_batch=1)).flops()
    tokens, hidden = llm.vision.inner_tokens, llm.vision.hidden
    core = 4 * 3 * 2 * tokens * tokens * hidden
    assert fused == (forward, whole - forward + core / 2)


def test_modules_of_transformers_have_these_parameters_and_flops():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from torch.utils.flop_counter import FlopCounterMode
    from transformers.models.llama4 import modeling_llama4 as llama4
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    vision = transformers.Qwen3VLConfig(vision_config=QWEN_SMALL["vision_config"]).vision_config
    vision._attn_implementation = "eager"
    qwen = Qwen3VLVisionModel(vision)

    def qwen_tokens():
        out = qwen(torch.randn(128, 1536), grid_thw=torch.tensor([[1, 8, 8], [1, 8, 8]]))
        return torch.cat([out.pooler_output, *out.deepstack_features])

    text = LLAMA_SMALL["text_config"]
    config = transformers.Llama4Config(vision_config=LLAMA_SMALL["vision_config"], text_config=text)
    config.vision_config._attn_implementation = "eager"
    tower, projector = (
        llama4.Llama4VisionModel(config.vision_config),
        llama4.Llama4MultiModalProjector(config),
    )

    def llama_tokens():
        return projector(tower(torch.randn(2, 3, 112, 112)).last_hidden_state)

    for content, modules, tokens_of in (
        (QWEN_SMALL, [qwen], qwen_tokens),
        (LLAMA_SMALL, [tower, projector], llama_tokens),
    ):
        llm = from_hf(content, images=2, seq_len=64)
        with FlopCounterMode(display=False) as counter:
            tokens = tokens_of()
            forward = counter.get_total_flops()
            tokens.sum().backward()
        assert llm.vision_flops == (counter.get_total_flops(), forward)
        assert llm.vision_parameters == sum(p.numel() for m in modules for p in m.parameters())


def test_transformers_counts_as_many_parameters():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    for name, content in (("Qwen3VL", QWEN_8B), ("Llama4", SCOUT), ("Qwen3_5", None)):
        given = {k: v for k, v in (content or {}).items() if k != "architectures"}
        given = given or {"vision_config": {"out_hidden_size": 4096}}
        config = getattr(transformers, f"{name}Config")(**given)
        with torch.device("meta"):
            model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
        saved = {**config.to_dict(), "architectures": [f"{name}ForConditionalGeneration"]}
        llm = from_hf(saved, images=1, seq_len=8192)
        assert llm.parameters == sum(p.numel() for p in model.parameters()), name


@pytest.mark.parametrize("norm", [True, False])
def test_kept_bytes_are_those_that_torch_saves(norm):
    """A tower in bf16 whose layers fuse nothing but attention; statistics of norms apart."""
    torch = pytest.importorskip("torch")
    functional, nn = torch.nn.functional, torch.nn
    patches, images, width, heads, ffn, out = 64, 2, 64, 4, 96, 128
    dtype = torch.bfloat16

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

        def forward(self, x):
            split = self.qkv(self.norms[0](x)).view(images, patches, 3, heads, -1)
            q, k, v = split.permute(2, 0, 3, 1, 4)
            core = functional.scaled_dot_product_attention(q * 1.5, k * 1.5, v)
            x = x + self.out(core.transpose(1, 2).reshape(images, patches, width))
            return x + self.down(functional.gelu(self.up(self.norms[1](x))))

    first, blocks = nn.Linear(48, width), nn.Sequential(Block(), Block(), Block())
    behind = nn.LayerNorm(width) if norm else nn.Identity()
    projector = nn.Sequential(nn.Linear(4 * width, 80), nn.GELU(), nn.Linear(80, out))
    modules = nn.ModuleList([first, blocks, behind, projector]).to(dtype)
    weights = {p.untyped_storage().data_ptr() for p in modules.parameters()}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        tokens = behind(blocks(first(torch.randn(images, patches, 48, dtype=dtype))))
        result = projector(tokens.reshape(-1, 4 * width))
    result.sum().backward()
    statistics = 2 * 4 * images * patches * (2 * 3 + norm)  # means and deviations, not counted
    measured = sum(size for size, _ in saved.values())
    tower = VisionTower(
        layers=3, hidden=width, heads=heads, ffn=ffn, patches=patches, images=images, merge=4,
        patch_inputs=48, projector=(80,), projector_norm=norm, rotary=True,
    )  # fmt: skip
    llm = replace(SMALL, hidden=out, vision=tower)
    kept, work = vision_activations(llm, Plan(global_batch=1))
    assert measured - statistics <= kept <= measured
    assert work > 0


def test_a_frozen_tower_has_no_backward_no_gradients_and_no_states():
    plan = Plan(dp=4, global_batch=16)
    trained, frozen = with_vision(TOWER), with_vision(replace(TOWER, frozen=True))
    forward, backward = vision_work(frozen, plan).flops()
    tokens = TOWER.image_tokens
    # Of the projector both gradients but that of its input; of the tower nothing.
    assert backward == 2 * tokens * (2048 * 2048 + 2 * 2048 * 1024)
    assert forward == vision_work(trained, plan).flops()[0]
    assert frozen.vision_flops == (forward + backward, forward)
    own = 6 * (4 * 512**2 + 2 * 512 * 2048 + 4 * 512 + 2048 + 512 + 4 * 512)
    own += 512 * (588 + 1)
    projector = 2048 * 2048 + 2048 + 2048 * 1024 + 1024
    assert vision_share(frozen, plan) == (own + projector, own)
    assert frozen_parameters(frozen, plan).tolist() == [own]
    one, other = (predict(x, plan, H100).memory[0] for x in (frozen, trained))
    assert one.parameters == other.parameters
    assert other.gradients - one.gradients == 4 * own
    assert other.optimizer - one.optimizer == 12 * own / 4
    # Kept: what the projector takes, and its activation's input and result.
    assert vision_activations(frozen, plan) == (2 * tokens * (2048 + 2 * 2048), 0.0)


def test_fsdp_reduces_no_gradients_of_a_frozen_tower():
    plan = Plan(dp=8, global_batch=16, zero=3)
    held = {}
    for name, tower in (("trained", TOWER), ("frozen", replace(TOWER, frozen=True))):
        llm = with_vision(tower)
        held[name] = CostModel(llm, H100).repeated_s(plan, *place_parameters(llm, plan))
    text = CostModel(SMALL, H100).repeated_s(plan, *place_parameters(SMALL, plan))
    assert held["frozen"][0] == held["trained"][0] > text[0]
    assert text[1] < held["frozen"][1] < held["trained"][1]


def test_adapters_leave_the_tower_its_forward():
    plan = Plan(dp=4, global_batch=16, adapter_rank=8)
    llm = with_vision(TOWER)
    forward, backward = vision_work(llm, plan).flops()
    assert backward == 0
    assert vision_activations(llm, plan) == (0.0, 0.0)
    assert (
        predict(llm, plan, H100).memory[0].gradients
        == predict(SMALL, plan, H100).memory[0].gradients
    )
    more = predict(llm, plan, H100).model_flops_per_gpu * predict(llm, plan, H100).step_time_s
    text = predict(SMALL, plan, H100).model_flops_per_gpu * predict(SMALL, plan, H100).step_time_s
    assert more - text == pytest.approx(forward * 4)


def test_the_first_stage_alone_takes_longer():
    plan = Plan(pp=2, dp=2, global_batch=16)
    text, image = (CostModel(x, H100).stage_work(plan) for x in (SMALL, with_vision(TOWER)))
    more = image.parts_s.sum(axis=1) - text.parts_s.sum(axis=1)
    assert (more[:, 0] > 0).all()
    assert (more[:, 1] == 0).all()
    assert image.parameters[0] - text.parameters[0] == with_vision(TOWER).vision_parameters
    assert image.parameters[1] == text.parameters[1]
    flops = image.flops[:, 0] - text.flops[:, 0]
    assert flops.tolist() == list(vision_work(with_vision(TOWER), plan).flops())


def test_twice_the_images_are_twice_the_work_and_context_parallel_ranks_share_none():
    plan = Plan(global_batch=1)
    one, two = (vision_work(with_vision(replace(TOWER, images=n)), plan) for n in (1, 2))
    assert [2 * x for x in one.flops()] == list(two.flops())
    split = vision_work(with_vision(TOWER), Plan(cp=2, global_batch=1))
    assert split.flops() == two.flops()


def test_tensor_parallel_ranks_share_layers_and_projector_and_exchange_results():
    one, two = (vision_work(with_vision(TOWER), Plan(tp=n, global_batch=1)) for n in (1, 2))
    patches = 2.0 * 2 * 1024 * 588 * 512
    assert two.flops()[0] - patches == pytest.approx((one.flops()[0] - patches) / 2)
    names = [w.name for w in two.forward if not isinstance(w, Operator)]
    assert names.count("projector-1-out") == 1
    assert len(names) == 1 + 2 * 6  # attention and MLP of each layer
    assert not [w for w in one.forward if not isinstance(w, Operator)]


def test_quantised_plans_leave_the_tower_in_sixteen_bits():
    plan = Plan(global_batch=1, precision="fp8")
    work = vision_work(with_vision(TOWER), plan)
    assert {w.precision for w in work.forward if isinstance(w, Operator)} == {"bf16"}


def test_bytes_around_the_layers_and_the_projector():
    """2 images of 1,024 patches and 512 wide; 512 merged tokens through 2,048 to 1,024."""
    tower = replace(TOWER, position_rows=1024, end_norms=2)
    work = vision_work(with_vision(tower), Plan(global_batch=1))
    moved = {}
    for entry in (*work.forward, *work.backward):
        if entry.part == "memory":
            moved.setdefault(entry.name, []).append(entry.bytes)
    stream = 2 * 2 * 1024 * 512
    assert moved["patch-positions"] == [3 * stream]  # reads tokens and positions, writes a sum
    assert moved["patch-positions-backward"] == [2 * stream]
    assert moved["norm-tower"] == 2 * [2 * stream]
    assert moved["norm-tower-backward"] == 2 * [4 * stream]
    inner = 2 * 512 * 2048
    assert moved["projector-0-activation"] == [2 * inner]
    assert moved["projector-0-activation-backward"] == [3 * inner]
    assert moved["projector-copy"] == moved["projector-copy-backward"] == [2 * 2 * 512 * 1024]
    kept = [
        vision_activations(with_vision(replace(TOWER, end_norms=n)), Plan(global_batch=1))[0]
        for n in (0, 2)
    ]
    assert kept[1] - kept[0] == 2 * stream


def test_bytes_that_tensor_parallel_ranks_exchange_at_the_projector():
    work = vision_work(with_vision(TOWER), Plan(tp=4, global_batch=1))
    sent = {w.name: w.bytes for w in (*work.forward, *work.backward) if not hasattr(w, "flops")}
    assert sent["projector-1-out"] == 2 * 512 * 1024
    assert sent["projector-0-in-backward"] == 2 * 512 * 2048
    frozen = vision_work(with_vision(replace(TOWER, frozen=True)), Plan(tp=4, global_batch=1))
    assert not [w for w in frozen.backward if not hasattr(w, "flops")]


def test_fsdp_gathers_the_largest_layer_and_all_beside_the_layers():
    wide = replace(TOWER, hidden=2048, ffn=8192)
    llm, plan = replace(SMALL, ffn=64, vision=wide), Plan(dp=8, global_batch=8, zero=3)
    layer = 4 * 2048**2 + 2 * 2048 * 8192 + 4 * 2048 + 8192 + 2048 + 4 * 2048
    beside = 589 * 2048 + 8192 * 2048 + 2048 + 2048 * 1024 + 1024
    words = 50304 * 1024
    whole = gathered_bytes(llm, plan)[:, 0].tolist()
    assert whole[0] == 2 * (words + beside) + 2 * layer
    assert whole[2] == (2 + 2 + 4) * (words + beside)


def test_weights_held_in_fp8_are_not_the_towers():
    plan, rules = Plan(global_batch=8, precision="fp8"), MemoryRules(weight_bytes=1.0)
    text, image = (stage_states(x, plan, rules)[0][0] for x in (SMALL, with_vision(TOWER)))
    assert image - text == 2 * with_vision(TOWER).vision_parameters


def test_full_recomputation_repeats_the_layers_and_not_the_projector():
    plan = Plan(global_batch=1, recompute="full")
    work = vision_work(with_vision(TOWER), plan)
    names = {w.name for w in work.recompute}
    assert "mlp-up" in names
    assert not any(name.startswith(("projector", "patches")) for name in names)


def test_given_costs_are_taken_as_they_are():
    given = VisionCost(forward_s=0.05, backward_s=0.1, parameters=10**8, activation_bytes=1e9)
    plan = Plan(dp=2, global_batch=8)  # four microbatches, one in flight
    text, image = predict(SMALL, plan, H100), predict(with_vision(given), plan, H100)
    parts = image.costs.parts_s - text.costs.parts_s
    assert parts.sum(axis=1)[:, 0] == pytest.approx([0.05, 0.1])
    one, other = text.memory[0], image.memory[0]
    assert other.parameters - one.parameters == 2 * 10**8
    assert other.activations - one.activations == 1e9
    assert image.llm.parameters == SMALL.parameters + 10**8
    assert image.costs.flops.tolist() == text.costs.flops.tolist()
    frozen = predict(with_vision(replace(given, frozen=True)), plan, H100).memory[0]
    assert frozen.gradients == one.gradients
    assert frozen.optimizer == one.optimizer


def test_a_tower_beside_a_tiny_model_decides_the_peak():
    tiny = replace(SMALL, layers=1, vision=replace(TOWER, images=8), hidden=256, ffn=256)
    plan = Plan(global_batch=1, recompute="full")
    work = vision_activations(tiny, plan)[1]
    assert vision_excess(tiny, plan, 0.0) == work > vision_excess(tiny, plan, work / 2) > 0
    assert vision_excess(tiny, plan, 2 * work) == 0


def test_predictions_warn_that_no_run_has_tested_a_tower():
    warnings = predict(with_vision(TOWER), Plan(global_batch=8), H100).warnings
    assert any("a vision tower" in text for text in warnings)
    assert not any("counted without" in text for text in warnings)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"images": 0}, "images must be a whole number >= 1"),
        ({"patches": 1023}, "patches 1023 is not a multiple of merge 4"),
        ({"heads": 7}, "hidden 512 is not a multiple of heads 7"),
        ({"projector": 5}, "projector must be a list of widths, not 5"),
        ({"projector": (0,)}, "projector must be a list of widths"),
        ({"end_norms": 3}, "end_norms is at most 2"),
        ({"frozen": "no"}, "frozen must be true or false"),
    ],
)
def test_towers_that_cannot_be_are_refused(changes, complaint):
    with pytest.raises(ModelError, match=complaint.replace("(", r"\(")):
        replace(TOWER, **changes)


def test_more_image_tokens_than_the_sample_has_are_refused():
    with pytest.raises(ModelError, match="9 images of 1024 patches are 2304 tokens, more than seq"):
        with_vision(replace(TOWER, images=9))
    with pytest.raises(ModelError, match="a window and an index beside bidirectional"):
        replace(SMALL, bidirectional=True, window=128)
    with pytest.raises(ModelError, match="forward_s must be a number >= 0, not -1"):
        VisionCost(forward_s=-1, backward_s=0, parameters=0, activation_bytes=0)


def test_tensor_parallelism_must_divide_the_tower():
    with pytest.raises(PlanError, match="the vision tower's heads 6 not divisible by tp 4"):
        check(Plan(tp=4, global_batch=1), with_vision(replace(TOWER, heads=6, hidden=516, ffn=512)))


def test_megatrons_pretraining_script_takes_no_images():
    assert "--tensor-model" in launch_text("megatron", SMALL, Plan(global_batch=8))
    with pytest.raises(PlanError, match=r"has no images in pretrain_gpt\.py"):
        launch_text("megatron", with_vision(TOWER), Plan(global_batch=8))


def test_configs_say_what_is_wrong():
    with pytest.raises(ModelError, match="images are of models with a vision tower; LlamaForCausa"):
        from_hf({"architectures": ["LlamaForCausalLM"], **TEXT}, images=1)
    wrong = QWEN_SMALL | {"vision_config": QWEN_SMALL["vision_config"] | {"out_hidden_size": 64}}
    with pytest.raises(ModelError, match="out_hidden_size 64 beside the hidden_size 128"):
        from_hf(wrong, images=1)
    uneven = LLAMA_SMALL["vision_config"] | {"vision_output_dim": 64}
    with pytest.raises(ModelError, match="a projector whose widths do not follow"):
        from_hf(LLAMA_SMALL | {"vision_config": uneven}, images=1)
    ratio = LLAMA_SMALL["vision_config"] | {"pixel_shuffle_ratio": 0.25}
    with pytest.raises(ModelError, match=r"a pixel_shuffle_ratio 0\.25 is not modelled"):
        from_hf(LLAMA_SMALL | {"vision_config": ratio}, images=1)
    with pytest.raises(ModelError, match="T5ForConditionalGeneration, an encoder-decoder, which"):
        from_hf({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"})
    for content in (QWEN_SMALL, LLAMA_SMALL):
        assert from_hf(content).left_out == "the vision tower"


JOB = """
model: {{name: small, layers: 8, hidden: 1024, heads: 16, vocab: 50304, seq_len: 2048, {vision}}}
cluster: h100
gpus: 8
plan: {{global_batch: 16}}
"""


def test_a_job_file_has_a_tower_by_fields_by_cost_or_of_a_config(tmp_path):
    path = tmp_path / "job.yaml"
    fields = "layers: 6, hidden: 512, heads: 8, patches: 1024, images: 2, merge: 4"
    path.write_text(JOB.format(vision=f"vision: {{{fields}, projector: [2048]}}"))
    assert load_job(path).llm == replace(SMALL, vision=TOWER)
    cost = "forward_s: 0.05, backward_s: 0.1, parameters: 1000, activation_bytes: 1e9"
    path.write_text(JOB.format(vision=f"vision: {{{cost}}}"))
    assert load_job(path).llm.vision == VisionCost(
        forward_s=0.05, backward_s=0.1, parameters=1000, activation_bytes=1e9
    )
    (tmp_path / "config.json").write_text(json.dumps(QWEN_SMALL))
    head = "cluster: h100\ngpus: 1\nplan: {global_batch: 2}\nmodel: "
    path.write_text(head + "{hf: config.json, images: 1, vision: {patches: 32, frozen: true}}")
    vision = load_job(path).llm.vision
    assert (vision.images, vision.patches, vision.frozen, vision.layers) == (1, 32, True, 3)
    path.write_text(head + "{preset: gpt3-175b, images: 1}")
    with pytest.raises(ModelError, match="images are of a Hugging Face config"):
        load_job(path)
    path.write_text(head + "{preset: gpt3-175b, vision: {layers: 3, images: 1}}")
    with pytest.raises(ModelError, match="lacks hidden, heads, patches"):
        load_job(path)


def test_the_option_counts_the_tower_and_without_it_the_warning_stays(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN_8B))
    options = ["predict", "--model", str(config), "--gpu", "h100", "--gpus", "8", "--json"]
    options += ["--global-batch", "16", "--seq-len", "4096", "--zero", "3"]
    assert run(options) == 0
    text = json.loads(capsys.readouterr().out)
    assert run([*options, "--images", "2"]) == 0
    image = json.loads(capsys.readouterr().out)
    assert image["step_time_s"] > text["step_time_s"]
    assert any("counted without the vision tower" in w for w in text["warnings"])
    assert not any("counted without" in w for w in image["warnings"])
    assert run([*options[:2], "gpt3-175b", *options[3:], "--images", "2"]) == 2
    assert "images are counted with a config.json" in capsys.readouterr().err
