"""The command that finds a slow GPU or link, for all texts that advise a validation."""

from __future__ import annotations

#: Usual number of GPUs of a host: a validation of more ranks needs several hosts.
HOST_RANKS = 8


def validation_command(ranks: int | None) -> str:
    """A command that validates a job's ranks; torchrun starts it on several hosts.

    Args:
        ranks: number of ranks of the job; None or 0 if unknown.
    """
    if not ranks:
        return "paceline validate --world-size N --run, with N ranks (docs/validate.md)"
    if ranks > HOST_RANKS:
        return "paceline validate by torchrun on all hosts (docs/validate.md)"
    return f"paceline validate --world-size {ranks} --run"
