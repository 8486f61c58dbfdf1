"""Uses of wall time, and their names in public goodput tools.

Google's are ``BadputType`` of ml-goodput-measurement 0.2.3 (``src/goodput_utils.py``); NVIDIA's the
application metrics that one logger's v1 tracker writes, as Megatron-LM (core 0.20.0,
``training/one_logger_utils.py``) names them.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Category -> its meaning, in the order in which ledgers have them.
CATEGORIES: Mapping[str, str] = {
    "productive": "steps that count, as fast as the job could be",
    "stragglers": "what slow workers, links and uneven work cost in these steps (1 - 1/S)",
    "fail_slow": "what a detected fail-slow cost in these steps",
    "lost_steps": "steps that a restart ran again",
    "restarts": "from the last sign of a job that failed to the next first step",
    "checkpoints": "saving checkpoints, as far as training waited",
    "evaluation": "evaluation, validation and tests",
    "data_waits": "waiting for data",
    "startup": "initialisation before the first step of the first start",
    "compile": "what the first step of each start takes beyond the typical one",
    "idle": "from a job's own end to its next start",
    "other": "pauses that the log names otherwise",
    "unknown": "time that no line explains",
}

#: Categories whose rows have other names than themselves in texts.
_LABELS = {"fail_slow": "fail-slow", "compile": "first steps"}

#: Categories whose time may lie in the steps of a log that does not tell it.
IN_STEPS = (
    "stragglers",
    "fail_slow",
    "compile",
    "checkpoints",
    "evaluation",
    "data_waits",
    "other",
)


def label(category: str) -> str:
    """A category's name in texts."""
    return _LABELS.get(category, category.replace("_", " "))


#: Google's ``BadputType`` -> category. There the cost of a restart is split into its parts.
GOOGLE: Mapping[str, str] = {
    "TPU_INITIALIZATION": "startup",
    "TRAINING_PREP": "startup",
    "PROGRAM_STARTUP": "compile",
    "DATA_LOADING_SYNC": "data_waits",
    "DATA_LOADING_ASYNC": "data_waits",
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": "checkpoints",
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": "restarts",
    "WASTED_PROGRESS_FROM_DISRUPTION": "lost_steps",
    "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": "restarts",
    "CUSTOM_BADPUT_EVENTS": "other",
    "ELASTIC_SLICE_DOWN": "restarts",
    "ELASTIC_SCALE_UP": "restarts",
    "ELASTIC_REINITIALIZATION": "restarts",
    "OTHER": "unknown",
}

#: One logger's metric, in seconds -> category.
ONE_LOGGER: Mapping[str, str] = {
    "train_iterations_time_total": "productive",
    "validation_iterations_time_total": "evaluation",
    "save_checkpoint_sync_time_total": "checkpoints",
}
