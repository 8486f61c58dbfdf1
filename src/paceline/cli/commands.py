"""A line of help for each command, without loading any of them."""

from __future__ import annotations

from importlib import import_module
from keyword import iskeyword
from types import ModuleType

#: Command -> its line in the help of ``paceline``.
HELP = {
    "import": "make a trace of the files of other tools",
    "ranks": "summarise profiles of single ranks: compute, communication, idle time, kernels",
    "times": "step times and late ranks, from spans or logs that do not make a trace",
    "analyze": "the cost of stragglers in a job, and the parts of the job that cause it",
    "diagnose": "the causes of a job's slowness, and the gain of each fix",
    "remedy": "the gain of one change to the job",
    "compare": "two traces side by side: did the fix work?",
    "fleet": "the cost of stragglers in a fleet of jobs: many traces, one dataset",
    "timeline": "draw a job, as measured or as simulated, for Perfetto",
    "synth": "make a trace with known causes of slowness",
    "detect": "when did a job become slow? finds fail-slows in step times",
    "validate": "which GPU or link is slow? measures matrix products and messages",
    "hosts": "results of validations per host: list, history, hosts to cordon",
    "telemetry": (
        "which GPUs throttle, have errors or slow links? reads samples of nvidia-smi or DCGM"
    ),
    "goodput": "where did a job's wall time go? turns logs into a ledger that adds up",
    "mitigate": "what to do about fail-slows, and when to do it",
    "layers": "layers of a network: shapes, parameters, FLOPs, bytes",
    "predict": "step time, memory and cost of a plan before the run",
    "plan": "the best plan for a model: every legal one, evaluated",
    "presets": "names of the models, GPUs and networks that Paceline knows",
    "optimal": "the largest compute-optimal model that really fits into GPUs and days",
    "queue": "replay a cluster's queue: another policy, or better plans",
    "profile": "time the operators of a model on this machine's GPU",
    "calibrate": "fit a cluster's efficiencies to your own measured step times",
    "record": "status of a running job's recorder; switch it on and off",
    "nccl": "the profiler plugin for NCCL: records collectives of any framework, pauses the job",
    "watch": "watch a running job unattended: onset, slow rank, validation, plan",
    "push": "send a trace or a recording to the monitor",
    "otlp": "receive the OpenTelemetry spans that a running job sends",
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
