"""Lines of steps that the tools' own format strings write, evaluated with made-up values.

The strings are taken out of the sources (clones in ``PACELINE_CLONES``) and never copied.
"""

import ast
import datetime
from types import SimpleNamespace

import pytest

import requires
from paceline.sources.step_logs.files import load_step_log

#: Seconds of 60 steps.
SECONDS = [0.5 if step < 55 else 0.75 for step in range(60)]


def expression(repository, revision, path, *marks):
    """The shortest string or call of a source that holds all marks, as code."""
    text = requires.source(repository, revision, path)
    nodes = list(ast.walk(ast.parse(text)))
    specs = {node.format_spec for node in nodes if isinstance(node, ast.FormattedValue)}
    segments = {
        node: ast.get_source_segment(text, node) or ""
        for node in nodes
        if isinstance(node, ast.JoinedStr | ast.Call) and node not in specs
    }
    found = [node for node, part in segments.items() if all(mark in part for mark in marks)]
    return compile(ast.Expression(min(found, key=lambda node: len(segments[node]))), path, "eval")


def function(repository, revision, path, name):
    """A function of a source, by itself."""
    text = requires.source(repository, revision, path)
    (node,) = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    scope = {"Any": object, "math": __import__("math")}
    exec("from __future__ import annotations\n" + ast.unparse(node), scope)
    return scope[name]


def nanogpt():
    line = expression("karpathy/nanoGPT", "3adf61e", "train.py", "iter {iter_num}: loss")
    return lambda i, s, t: eval(line, {"iter_num": i, "lossf": 2.5, "dt": s, "running_mfu": 0.3})


def litgpt(path="litgpt/pretrain.py"):
    line = expression(
        "Lightning-AI/litgpt", "2685705", path, "Epoch {metrics", "iter time: {metrics"
    )

    def write(i, s, t):
        metrics = {"epoch": 0, "iter": i, "step": i // 4, "loss": 1.6, "iter_time": s}
        metrics["remaining_time"] = 62
        names = {"metrics": metrics, "val_loss": "n/a", "is_accumulating": i % 4 != 3}
        return eval(line, {**names, "timedelta": datetime.timedelta})

    return write


def litgpt_finetune():
    return litgpt("litgpt/finetune/full.py")


def maxtext():
    where = ("AI-Hypercomputer/maxtext", "e591f30", "src/maxtext/common/metric_logger.py")
    step = expression(*where, "completed step: {step}")
    seconds = expression(*where, "seconds: {scalars['perf/step_time_seconds']")
    scalars = "perf/step_time_seconds"
    return lambda i, s, t: ", ".join(
        eval(part, {"step": i, "scalars": {scalars: s}}) for part in (step, seconds)
    )


def olmo_core():
    where = ("allenai/OLMo-core", "fa6c501", "src/olmo_core/train/callbacks/console_logger.py")
    head = expression(*where, "[step={step}/", "eta={eta_str}]")
    row = expression(*where, "{name}={format_float(value)}")
    format_float = function(where[0], where[1], "src/olmo_core/utils.py", "format_float")
    trainer = SimpleNamespace(trainer=SimpleNamespace(max_steps=99, epoch=1))

    def write(i, s, t):
        metrics = {
            "train/CE loss": 2.5,
            "throughput/device/BPS": 1 / s,
            "throughput/device/BPS (actual avg)": 9.9,
        }
        lines = [eval(head, {"step": i, "eta_str": "1:02:03", "self": trainer})]
        for name, value in metrics.items():
            names = {"name": name, "value": value, "format_float": format_float}
            lines.append(eval(row, names))
        return "\n".join(lines)

    return write


def nanotron():
    where = ("huggingface/nanotron", "2411b02", "src/nanotron/logging/base.py")
    head = expression(*where, "iteration: {iteration_step} / ")
    row = expression(*where, "{tag}: {human_format(scalar_value)}")
    human_format = function(*where, "human_format")
    writer = SimpleNamespace(global_step=99)
    log = requires.source(where[0], where[1], "src/nanotron/trainer.py")
    assert 'LogItem("time_per_iteration_ms", elapsed_time_per_iteration_ms, "human_format")' in log

    def write(i, s, t):
        items = {"consumed_tokens": 1e6, "time_per_iteration_ms": s * 1e3, "lm_loss": 2.5}
        rows = [
            eval(row, {"tag": tag, "scalar_value": value, "human_format": human_format})
            for tag, value in items.items()
        ]
        return " | ".join([eval(head, {"iteration_step": i, "self": writer}), *rows])

    return write


def fairseq():
    where = ("facebookresearch/fairseq", "3d262bb", "fairseq/logging/progress_bar.py")
    line = expression(*where, '"{}:  {:5d} / {:d} {}"', "self.i + 1")
    trainer = requires.source(where[0], where[1], "fairseq/trainer.py")
    assert 'metrics.log_speed("ups", 1.0, priority=100, round=2)' in trainer
    form = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"
    assert form in requires.source(where[0], where[1], "fairseq_cli/train.py")

    def write(i, s, t):
        bar = SimpleNamespace(prefix="epoch 001", i=i, size=487)
        stats = f"loss=4.6, wps=14185.4, ups={round(1 / s, 2)}, num_updates={i}, lr=3e-05, wall=9"
        at = datetime.datetime(2026, 8, 22) + datetime.timedelta(seconds=int(t))
        return f"{at} | INFO | train_inner | {eval(line, {'self': bar, 'postfix': stats})}"

    return write


def colossalai():
    line = expression(
        *("hpcaitech/ColossalAI", "4f9953b", "examples/language/gpt/gemini/train_gpt_demo.py"),
        "Step time: {step_time",
    )
    loss = SimpleNamespace(item=lambda: 2.5)
    names = {"NUM_STEPS": 60, "loss": loss, "get_tflops_func": lambda s: 9.0}
    names |= {"fwd_time": 0.1, "bwd_time": 0.2, "optim_time": 0.1}
    return lambda i, s, t: eval(line, {**names, "n": i - 1, "step_time": s})


def timm():
    line = expression(
        "huggingface/pytorch-image-models", "aa4b585", "train.py", "Train: {epoch}", "update_idx"
    )

    def write(i, s, t):
        meters = {name: SimpleNamespace(val=s, avg=24.9) for name in ("update_time_m",)}
        meters["data_time_m"] = SimpleNamespace(val=0.1, avg=0.1)
        names = {"epoch": 0, "update_idx": i, "updates_per_epoch": 100, "loss_now": 6.9}
        names |= {"loss_avg": 6.9, "update_sample_count": 256, "lr": 1e-6, "utils": None}
        return eval(line, {**names, **meters})

    return write


def detectron2():
    where = ("facebookresearch/detectron2", "02b5c4e", "detectron2/utils/events.py")
    text = requires.source(*where)
    forms = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    (head,) = [form for form in forms if form.startswith(" {eta}iter: {iter}  {losses}")]
    (tail,) = [form for form in forms if form.startswith("{avg_data_time}{last_data_time} lr")]
    parts = {name: next(f for f in forms if f.startswith(f"{name}: ")) for name in ("last_time",)}

    def write(i, s, t):
        return (head + tail).format(
            eta="eta: 0:10:00  ",
            iter=i,
            losses="total_loss: 1.234",
            non_losses="",
            avg_time="time: 0.2001  ",
            last_time=parts["last_time"].format(s),
            avg_data_time="data_time: 0.0041  ",
            last_data_time="last_data_time: 0.0031  ",
            lr="0.00025",
            memory="max_mem: 2722M",
        )

    return write


def composer():
    where = ("mosaicml/composer", "6405188", "composer/loggers/console_logger.py")
    row = expression(*where, "{prefix}{data_name}: {data_str}")
    value = "f'{data:.4f}'"
    assert value in requires.source(where[0], where[1], "composer/loggers/logger.py")

    def write(i, s, t):
        lines = f"[batch={i + 1}/99]:"
        for name, text in {"time/batch": str(i), "time/train": f"{40 * t / 3600:.4f}"}.items():
            lines += eval(row, {"prefix": "Train ", "data_name": name, "data_str": text})
        return lines

    return write


def mmengine():
    where = ("open-mmlab/mmengine", "2543429", "mmengine/runner/log_processor.py")
    head = expression(*where, "Epoch({mode}){cur_epoch_str}", "{dataloader_len}]  ")
    times = expression(*where, 'time: {log_tag["time"]', "data_time")
    tools = {"mode": "train", "cur_epoch_str": " [1]", "dataloader_len": 99}

    def write(i, s, t):
        log_tag = {"time": s, "data_time": 0.01}
        values = {"log_tag": log_tag, "self": SimpleNamespace(num_digits=4)}
        begin = eval(head, {**tools, "cur_iter_str": f"{i:2d}"})
        return f"{begin}lr: 3.3e-04  eta: 0:08:32  {eval(times, values)}memory: 970  loss: 2.4"

    return write


TOOLS = [
    *(nanogpt, litgpt, litgpt_finetune, maxtext, olmo_core, nanotron, fairseq, colossalai),
    *(timm, detectron2, composer, mmengine),
]


@pytest.mark.parametrize("tool", TOOLS)
def test_lines_of_a_tools_own_format_strings(tmp_path, tool):
    write = tool()
    path, end_s, lines = tmp_path / "train.log", 0.0, []
    for step, seconds in enumerate(SECONDS):
        end_s += seconds
        lines.append(write(step, seconds, end_s))
    path.write_text("\n".join(["NCCL version 2.27.5", *lines]) + "\n")
    times = load_step_log(path)
    first, scale = (1, 40) if tool is composer else (0, 1)
    assert times.steps.tolist() == list(range(first, 60))
    expected = [scale * seconds for seconds in SECONDS[first:]]
    assert times.duration_s[:, 0] == pytest.approx(expected, rel=0.02)
    assert times.warnings == ()
