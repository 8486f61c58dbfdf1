"""A line of help for each command, without loading any of them."""

from __future__ import annotations

from importlib import import_module
from keyword import iskeyword
from types import ModuleType

#: Command -> its line in the help of ``paceline``.
HELP = {
    "import": "make a trace of the files of other tools",
    "ranks": "what profiles of some ranks say: compute, communication, idle time, kernels",
    "times": "step times and who is late, from spans or logs that are no trace",
    "analyze": "what stragglers cost a job, and which parts of it cost it",
    "diagnose": "why a job is slow, and what each fix would gain",
    "remedy": "what one change to the job would gain",
    "compare": "two traces side by side: did the fix work?",
    "fleet": "what stragglers cost a fleet of jobs: many traces, one dataset",
    "timeline": "draw a job, as it was or as it could be, for Perfetto",
    "synth": "make a trace with known causes of slowness",
    "detect": "when did a job become slow? step times in, fail-slows out",
    "validate": "which GPU or link is slow? matrix products and messages, measured",
    "hosts": "validations of each host over months: list, history, what to cordon",
    "telemetry": (
        "which GPUs throttle, have errors or slow links? nvidia-smi's or DCGM's samples in"
    ),
    "goodput": "where did a job's wall time go? logs in, a ledger that adds up out",
    "mitigate": "what to do about fail-slows, and when it pays",
    "layers": "layers of a network: shapes, parameters, FLOPs, bytes",
    "predict": "step time, memory and cost of a plan before the run",
    "plan": "the best plan for a model: every legal one, evaluated",
    "optimal": "the largest compute-optimal model that really fits into GPUs and days",
    "queue": "replay a cluster's queue: another policy, or better plans",
    "profile": "time the operators of a model on this machine's GPU",
    "calibrate": "fit a cluster's efficiencies to your own measured step times",
    "record": "what a running job has recorded; switch its recorder on and off",
    "nccl": "the profiler plugin for NCCL: records collectives of any framework, pauses the job",
    "watch": "watch a running job: onset, who, validation, plan, without a person",
    "push": "send a trace or a recording to the monitor",
    "otlp": "take in the OpenTelemetry spans that a running job sends",
    "demo": "train a small GPT here, slow it down, find out why, heal it",
    "serve": "watch all jobs: a service with a web page and alerts",
    "work": "analyse the sessions of a monitor of several instances",
    "alerts": "try the monitor's alerts, list, acknowledge and silence them",
    "admin": "tokens, backups and clearing up of a monitor",
    "doctor": "versions, extras, GPU, and what works on this machine",
    "completion": "print a shell's completion script",
}


def module_of(command: str) -> ModuleType:
    """The module of a command.

    It has ``add(subparsers)``, which declares the command and sets the default ``run``, and
    ``run(args)``, which returns the exit code.
    """
    return import_module(f"paceline.cli.{command}{'_' * iskeyword(command)}")
