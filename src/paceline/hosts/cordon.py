"""Hosts to take out of service, as commands of schedulers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping

from paceline.hosts.verdict import UnitVerdict


def slow_hosts(verdicts: Iterable[UnitVerdict]) -> dict[str, list[UnitVerdict]]:
    """Host -> its slow parts; hosts without slow parts are left out."""
    hosts: dict[str, list[UnitVerdict]] = {}
    for verdict in verdicts:
        if verdict.slow:
            hosts.setdefault(verdict.host, []).append(verdict)
    return hosts


def _slurm(host: str, reason: str) -> str:
    return (
        f"scontrol update nodename={shlex.quote(host)} state=drain "
        f"reason={shlex.quote(f'paceline: {reason}')}"
    )


def _kubernetes(host: str, reason: str) -> str:
    return f"kubectl cordon {shlex.quote(host)}  # {_one_line(reason)}"


def _name(host: str, reason: str) -> str:
    return _one_line(host)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


#: Format -> a line of it.
FORMATS: Mapping[str, Callable[[str, str], str]] = {
    "names": _name,
    "slurm": _slurm,
    "kubernetes": _kubernetes,
}


def cordon_lines(verdicts: Iterable[UnitVerdict], form: str) -> list[str]:
    """A line for each host with a slow part."""
    return [
        FORMATS[form](host, "; ".join(verdict.explain() for verdict in slow))
        for host, slow in sorted(slow_hosts(verdicts).items())
    ]
