"""Lines of a step as training frameworks write them.

Held against their sources:

- Megatron-LM core 0.20.0, commit d98e8a6: ``megatron/training/training.py``, ``training_log``.
- Megatron-Bridge, commit 031e7de: ``training/utils/train_utils.py``, ``training_log``. Before the
  line of Megatron-LM it writes ``Step Time : 1.23s`` without the step's number.
- NeMo: the lines of its ``ProgressPrinter`` (2.x) and of its progress bar (1.x).
- torchtitan, commit c594d8a: ``components/metrics.py``, ``MetricsProcessor.log``; older versions
  write ``wps`` for ``tps``.
- nanoGPT: ``train.py``. modded-nanogpt: ``train_gpt.py`` of its records; its clock stops for
  validations.
- llm.c, commit f1e2ace: ``train_gpt2.cu`` and ``train_gpt2.py``.
- build-nanogpt and nanochat: they write the step's time as ``dt``.
- DeepSpeed 0.19.6, commit edaa722: ``utils/timer.py``, ``ThroughputTimer.stop``; also the line of
  its pipeline engine.
- LitGPT, commit 2685705: ``litgpt/pretrain.py`` and ``litgpt/finetune``. An iter is a micro-batch.
- MaxText, commit e591f30: ``src/maxtext/common/metric_logger.py``; also a log of a run.
- OLMo-core, commit fa6c501: ``train/callbacks/console_logger.py`` and ``speed_monitor.py``.
- Composer and LLM Foundry, commit 6405188: ``loggers/console_logger.py``,
  ``callbacks/speed_monitor.py``. Its hours have four digits, so a tick is 0.36 s.
- nanotron, commit 2411b02: ``trainer.py``, ``train_step_logs``; three digits.
- PaddleNLP: ``trainer/trainer_utils.py``, ``speed_metrics``, commit 01f7436; also logs of runs.
- fairseq, commit 3d262bb: ``logging/progress_bar.py`` (simple and JSON), ``trainer.py``.
  ``ups`` has two digits behind the point, so the lines' times count below 0.5.
- ColossalAI, commit 4f9953b: ``examples/language/gpt/gemini/train_gpt_demo.py`` and its likes.
- MMEngine, commit 2543429: ``runner/log_processor.py``.
- Detectron2, commit 02b5c4e: ``utils/events.py``. Its ``time`` is the mean since the start, so
  ``last_time`` is read.
- timm, commit aa4b585: ``train.py``.
- torchvision's references and their many copies (DETR, DeiT, MAE): ``utils.py``,
  ``MetricLogger.log_every``, pytorch/vision 041fe3b. ``time`` is the mean of the last 20 steps.
- PyTorch's ImageNet example and its many copies: ``imagenet/main.py``, pytorch/examples 0221496.
  Copies write ``Batch Time 0.583 (0.386)`` or ``Time 0.542s (0.880s)``.
- verl, commit b178a3c: ``trainer/ppo/ray_trainer.py``, ``trainer/fsdp_sft_trainer.py``; lines of
  published logs. Older versions measure validations and checkpoints within ``timing_s/step``. They
  stand before it then.
- slime, commit 624b824: ``observability/train_metric_utils.py``, ``log_perf_data``.
- NeMo-RL, commit 7ea279a: ``algorithms/grpo.py`` and its likes. The time has checkpoints.
- prime-rl, commit 559b447: ``trainer/rl/train.py``, ``trainer/sft/train.py``, ``utils/logger.py``.
- LLaMA-Factory, commit ff6d4d1: ``train/callbacks.py``, ``LogCallback``; four published logs.
- ms-swift, commit 3602360: ``trainers/patcher.py``, ``megatron/callbacks/print.py``; a published
  log of an older version, whose ``train_speed`` counts ``iter/s``.
- MLX LM, commit c65c27b: ``tuner/trainer.py``. Since bdb77da it writes no time of a step.
- PaddleNLP's examples of 2021 to 2023: lines of published logs.

``covers`` is as these sources define the time.
"""

from __future__ import annotations

import re

from paceline.sources.step_logs.lines import LineFormat
from paceline.sources.step_logs.log_words import DATE

_NUMBER = r"\d{1,12}(?:\.\d{1,9})?"
_FLOAT = r"\d{1,12}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?"
_STEP = r"(?P<step>\d{1,10})"
_TIME = rf"(?P<time>{DATE})"

#: Formats in the order in which a line is tested.
LINE_FORMATS = (
    LineFormat(
        "Megatron",
        "elapsed time per iteration",
        re.compile(
            r"\biteration +(?P<step>\d{1,10})/ *\d+ \|"
            rf".*?elapsed time per iteration \(ms\): (?P<duration_ms>{_NUMBER})"
            r"(?:.*?global batch size: +(?P<batch>\d{1,10}))?"
        ),
        "mean",
    ),
    LineFormat(
        "NeMo",
        "train_step_timing in s",
        re.compile(
            r"(?:global_batch_size: (?P<batch>\d{1,10}) \| )?"
            r"global_step(?:: |=)(?P<step>\d{1,10})(?:\.0*)?\b"
            rf".*?train_step_timing in s(?:: |=)(?P<duration_s>{_NUMBER})"
        ),
        "last",
    ),
    LineFormat(
        "torchtitan",
        "mfu: ",
        re.compile(
            rf"(?:\[rank(?P<rank>\d{{1,9}})\]:.*?)?{_TIME}.*?step: +(?P<step>\d{{1,10}})\b"
            r".*?\b(?:tps|wps): (?P<rate>[\d,]{1,20})"
        ),
        "mean",
    ),
    LineFormat(
        "modded-nanogpt",
        " train_time:",
        re.compile(
            r"\bstep:(?P<step>\d{1,10})/\d+ (?:train_loss:\S+ )?"
            rf"train_time:(?P<elapsed_ms>{_NUMBER})ms"
        ),
        "mean",
    ),
    LineFormat(
        "nanoGPT",
        ": loss ",
        re.compile(
            r"\biter (?P<step>\d{1,10}): loss [^,\s]+, "
            rf"time (?P<duration_ms>{_NUMBER})ms"
        ),
        "last",
    ),
    LineFormat(
        "llm.c",
        " tok/s",
        re.compile(
            r"\bstep +(?P<step>\d{1,10})/\d+(?: \||:) (?:train )?loss .*?"
            rf"[|(] *(?P<duration_ms>{_NUMBER}) ms\b"
        ),
        "last",
    ),
    LineFormat(
        "nanochat",
        " dt: ",
        re.compile(rf"\bstep:? +(?P<step>\d{{1,10}})\b.*?\bdt: (?P<duration_ms>{_NUMBER}) ?ms\b"),
        "last",
    ),
    LineFormat(
        "DeepSpeed's pipeline",
        "iter time (s):",
        re.compile(rf"\bsteps: (?P<step>\d{{1,10}}) .*?iter time \(s\): (?P<duration_s>{_NUMBER})"),
        "mean",
    ),
    LineFormat(
        "DeepSpeed",
        "CurrSamplesPerSec=",
        re.compile(
            rf"{_TIME}.*?\bglobal_step=(?P<step>\d{{1,10}}), "
            r".*?CurrSamplesPerSec=(?P<rate>\d{1,12}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)"
        ),
        "last",
    ),
    LineFormat(
        "LitGPT",
        "iter time: ",
        re.compile(
            rf"\biter +{_STEP} step +\d+ \|.*?\biter time: +(?P<duration_ms>{_NUMBER}) ?ms\b"
        ),
        "last",
    ),
    LineFormat(
        "MaxText",
        "completed step: ",
        re.compile(rf"\bcompleted step: {_STEP}, seconds: (?P<duration_s>{_NUMBER})\b"),
        "last",
    ),
    LineFormat(
        "OLMo-core",
        "throughput/device/BPS=",
        re.compile(
            rf"\[step={_STEP}/[^\]]*\].*?throughput/device/BPS=(?P<steps_per_s>[\d.E+-]{{1,20}})"
        ),
        "last",
        head="[step=",
    ),
    LineFormat(
        "Composer",
        "time/train: ",
        re.compile(rf"\btime/batch: {_STEP}\b.*?\btime/train: (?P<elapsed_h>{_NUMBER})"),
        "mean",
        head="time/batch: ",
    ),
    LineFormat(
        "nanotron",
        "time_per_iteration_ms: ",
        re.compile(
            rf"\biteration: {_STEP} / \d+ \|"
            r".*?\btime_per_iteration_ms: (?P<duration_ms>\d{1,12}(?:\.\d{1,9})?[KMBT]?)"
        ),
        "last",
    ),
    LineFormat(
        "PaddleNLP",
        "interval_runtime: ",
        re.compile(rf"\bglobal_step: {_STEP},.*?\binterval_runtime: (?P<interval_s>{_NUMBER})"),
        "mean",
    ),
    LineFormat(
        "fairseq",
        "num_updates",
        re.compile(
            rf'(?:{_TIME}.*?)?\bups"?[=:] ?"?'
            r"(?:(?P<steps_per_s>(?:0\.[5-9]|[1-9]\d{0,8}(?:\.|\b))\d{0,9})|[\d.]+)"
            rf'.*?\bnum_updates"?[=:] ?"?{_STEP}\b'
        ),
        "mean",
    ),
    LineFormat(
        "ColossalAI",
        "Step time: ",
        re.compile(
            r"(?:\bRank(?P<rank>\d{1,9}) , )?"
            rf"\[{_STEP}/\d+\] (?:Loss:\S+|,) ?Step time: (?P<duration_s>{_NUMBER})s, TFLOPS: "
        ),
        "last",
    ),
    LineFormat(
        "MMEngine",
        "(train)",
        re.compile(
            rf"\b(?:Iter\(train\) +\[|Epoch\(train\) +\[(?P<epoch>\d{{1,9}})\] *\[) *{_STEP}/"
            rf"(?P<epoch_steps>\d{{1,10}})\] .*?  time: (?P<duration_s>{_NUMBER})  data_time: "
        ),
        "mean",
    ),
    LineFormat(
        "Detectron2",
        " last_time: ",
        re.compile(rf"\biter: {_STEP}  .*?  last_time: (?P<duration_s>{_NUMBER})  "),
        "last",
    ),
    LineFormat(
        "timm",
        "Train: ",
        re.compile(
            rf"\bTrain: (?P<epoch>\d{{1,9}}) \[ *{_STEP}/(?P<epoch_steps>\d{{1,10}}) +\( *\d+%\)\]"
            rf".*?  Time: (?P<duration_s>{_NUMBER})s, "
        ),
        "last",
    ),
    LineFormat(
        "torchvision",
        "data: ",
        re.compile(
            rf"\bEpoch: \[(?P<epoch>\d{{1,9}})\]\s+\[ *{_STEP}/(?P<epoch_steps>\d{{1,10}})\]"
            rf"\s+eta: .*?\btime: (?P<duration_s>{_NUMBER})(?: \([\d.]+\))?\s+data: "
        ),
        "window",
        window=20,
    ),
    LineFormat(
        "ImageNet example",
        "Epoch: [",
        re.compile(
            rf"\bEpoch: \[(?P<epoch>\d{{1,9}})\] ?\[ *{_STEP}/(?P<epoch_steps>\d{{1,10}})\]\s+"
            rf"(?:Batch )?Time +(?P<duration_s>{_NUMBER})s? \( *\d"
        ),
        "last",
    ),
    LineFormat(
        "verl",
        "timing_s/step:",
        re.compile(
            rf"\bstep:{_STEP} - (?:.*? - timing_s/testing:(?P<evaluation_s>{_FLOAT}))?"
            rf"(?:.*? - timing_s/save_checkpoint:(?P<checkpoint_s>{_FLOAT}))?"
            rf".*? - timing_s/step:(?P<duration_s>{_FLOAT})"
            r"(?:.*? - perf/total_num_tokens:(?P<tokens>\d{1,15}))?"
        ),
        "last",
    ),
    LineFormat(
        "verl's SFT",
        "train/time(s):",
        re.compile(rf"\bstep:{_STEP} - .*?train/time\(s\):(?P<duration_s>{_FLOAT})"),
        "last",
    ),
    LineFormat(
        "slime",
        "'perf/step_time': ",
        re.compile(rf"\bperf {_STEP}: \{{.*?'perf/step_time': (?P<duration_s>{_FLOAT})"),
        "last",
    ),
    LineFormat(
        "NeMo-RL",
        "Total step time: ",
        re.compile(rf"=== Step {_STEP}/\d+ ===.*?\bTotal step time: (?P<duration_s>{_NUMBER})s"),
        "last",
        head="=== Step ",
    ),
    LineFormat(
        "prime-rl",
        " | Loss ",
        re.compile(
            rf"\bStep {_STEP} \| +(?P<duration>\d+(?:\.\d+)?(?:ms|s)|\d+[dhm] \d+[hms]) \| Loss "
        ),
        "last",
    ),
    LineFormat(
        "LLaMA-Factory",
        '"current_steps": ',
        re.compile(
            rf'"current_steps": {_STEP}, .*?"elapsed_time": "(?P<elapsed>[^"]{{4,40}})"'
            rf'(?:.*?"throughput": (?P<mean_tokens_per_s>{_NUMBER}), '
            r'"total_tokens": (?P<total_tokens>\d{1,15}))?'
        ),
        "mean",
    ),
    LineFormat(
        "ms-swift",
        "train_speed(",
        re.compile(
            rf"(?=.*?['\"](?:global_step/max_steps|iteration)['\"]: ['\"]{_STEP}/\d)"
            r"(?=.*?['\"]elapsed_time['\"]: ['\"](?P<elapsed>[^'\"]{2,40})['\"])"
            rf".*?['\"]train_speed\((?:s/it\)['\"]: ['\"]?(?P<mean_s>{_NUMBER})"
            rf"|iter/s\)['\"]: ['\"]?(?P<mean_steps_per_s>{_NUMBER}))"
        ),
        "mean",
    ),
    LineFormat(
        "MLX LM",
        "It/sec ",
        re.compile(
            rf"\bIter {_STEP}: Train loss .*?, It/sec (?P<steps_per_s>{_NUMBER}), Tokens/sec"
        ),
        "mean",
    ),
    LineFormat(
        "PaddleNLP's examples",
        ", speed: ",
        re.compile(
            rf"\bglobal step {_STEP}, epoch: .*?\bspeed: (?P<steps_per_s>{_NUMBER}) step/s\b"
        ),
        "mean",
    ),
)

#: Codes by which terminals colour lines.
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
