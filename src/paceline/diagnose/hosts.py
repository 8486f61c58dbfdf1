"""Host names in findings: an on-call engineer acts on machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from paceline.diagnose.finding import Finding
from paceline.trace.job import device_name

Hosts = Mapping[tuple[int, int], tuple[str, str]]

NO_HOSTS: Hosts = MappingProxyType({})

#: More hosts than this are counted, not listed.
MAX_NAMED = 8


def name_hosts(finding: Finding, hosts: Hosts) -> Finding:
    """The finding with the hosts of its workers, if they are known."""
    workers = finding.where.get("workers") or finding.where.get("link") or []
    places = [hosts[(dp, pp)] for dp, pp in workers if (dp, pp) in hosts]
    if not places or finding.cause == "gc":
        return finding
    names = list(dict.fromkeys(host for host, _ in places))
    if len(places) == 1:
        text = device_name(*places[0])
    elif len(names) == 1:
        text = f"all on {names[0]}"
    else:
        text = ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")
    evidence = dict(finding.evidence)
    if finding.cause == "worker":
        evidence["pattern"] = _pattern(str(evidence["pattern"]), workers, hosts, names)
    return replace(
        finding,
        text=f"{finding.text} ({text})",
        where={**finding.where, "hosts": names},
        evidence=evidence,
    )


def _pattern(pattern: str, workers: list[list[int]], hosts: Hosts, names: list[str]) -> str:
    """Whether the slow workers are all workers of one host in this job."""
    if len(workers) < 2 or len(names) != 1:
        return pattern
    of_host = Counter(host for host, _ in hosts.values())[names[0]]
    return "all of one node" if of_host == len(workers) else "one node"
