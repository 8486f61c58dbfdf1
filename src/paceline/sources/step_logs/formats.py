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
"""

from __future__ import annotations

import re

from paceline.sources.step_logs.lines import LineFormat

_NUMBER = r"\d{1,12}(?:\.\d{1,9})?"
_TIME = r"(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)"

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
    ),
    LineFormat(
        "NeMo",
        "train_step_timing in s",
        re.compile(
            r"(?:global_batch_size: (?P<batch>\d{1,10}) \| )?"
            r"global_step(?:: |=)(?P<step>\d{1,10})(?:\.0*)?\b"
            rf".*?train_step_timing in s(?:: |=)(?P<duration_s>{_NUMBER})"
        ),
    ),
    LineFormat(
        "torchtitan",
        "mfu: ",
        re.compile(
            rf"(?:\[rank(?P<rank>\d{{1,9}})\]:.*?)?{_TIME}.*?step: +(?P<step>\d{{1,10}})\b"
            r".*?\b(?:tps|wps): (?P<rate>[\d,]{1,20})"
        ),
    ),
    LineFormat(
        "modded-nanogpt",
        " train_time:",
        re.compile(
            r"\bstep:(?P<step>\d{1,10})/\d+ (?:train_loss:\S+ )?"
            rf"train_time:(?P<elapsed_ms>{_NUMBER})ms"
        ),
    ),
    LineFormat(
        "nanoGPT",
        ": loss ",
        re.compile(
            r"\biter (?P<step>\d{1,10}): loss [^,\s]+, "
            rf"time (?P<duration_ms>{_NUMBER})ms"
        ),
    ),
    LineFormat(
        "llm.c",
        " tok/s",
        re.compile(
            r"\bstep +(?P<step>\d{1,10})/\d+(?: \||:) (?:train )?loss .*?"
            rf"[|(] *(?P<duration_ms>{_NUMBER}) ms\b"
        ),
    ),
    LineFormat(
        "nanochat",
        " dt: ",
        re.compile(rf"\bstep:? +(?P<step>\d{{1,10}})\b.*?\bdt: (?P<duration_ms>{_NUMBER}) ?ms\b"),
    ),
    LineFormat(
        "DeepSpeed's pipeline",
        "iter time (s):",
        re.compile(rf"\bsteps: (?P<step>\d{{1,10}}) .*?iter time \(s\): (?P<duration_s>{_NUMBER})"),
    ),
    LineFormat(
        "DeepSpeed",
        "CurrSamplesPerSec=",
        re.compile(
            rf"{_TIME}.*?\bglobal_step=(?P<step>\d{{1,10}}), "
            r".*?CurrSamplesPerSec=(?P<rate>\d{1,12}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)"
        ),
    ),
)

#: Codes by which terminals colour lines.
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
