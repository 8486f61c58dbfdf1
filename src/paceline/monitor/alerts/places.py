"""The place of an alert and its best remedy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.monitor.alerts.judgement import Alarm
from paceline.monitor.blobs import Blobs, BlobsAway
from paceline.monitor.documents import read_report
from paceline.monitor.log import log
from paceline.monitor.rank_groups import hosts_of
from paceline.results.causes import cause_hosts, cause_place, cause_remedy
from paceline.units import several

#: Largest result of a session that is read for its findings.
_MAX_RESULT_BYTES = 64 << 20


@dataclass(frozen=True)
class Where:
    """The place of an alert and its best remedy; None if unknown.

    Attributes:
        place: as text, with the hosts.
        hosts: only the hosts, as text.
        gain: gain of the best remedy.
    """

    place: str | None = None
    hosts: str | None = None
    gain: str | None = None


def in_ranks(alarm: Alarm, meta: Any) -> Where:
    """The place of slow ranks, with the hosts that were pushed with the latest trace.

    That trace need not be analysed yet, for the person on call needs the host now.
    """
    hosts = _hosts_of(meta or {}, alarm.ranks)
    return Where(f"{alarm.place}; host {hosts}" if hosts else alarm.place, hosts)


def in_result(blobs: Blobs, alarm: Alarm, session_id: int) -> Where:
    """The place and remedy of the alarm's cause in a session's result."""
    try:
        report = read_report(blobs, session_id, _MAX_RESULT_BYTES)
    except (OSError, BlobsAway) as error:
        log(logging.WARNING, "no result", session=session_id, error=str(error))
        return Where()
    if report is None:
        return Where()
    cause, at = alarm.cause, alarm.place
    remedy = cause_remedy(report, cause, at)
    return Where(
        cause_place(report, cause, at),
        cause_hosts(report, cause, at),
        None if remedy is None else remedy.text,
    )


def _hosts_of(meta: Mapping[str, Any], ranks: Sequence[int]) -> str | None:
    """The hosts of ranks from a pushed trace; None if unknown."""
    hosts = hosts_of(meta)
    names = dict.fromkeys(hosts[rank][0] for rank in ranks if rank in hosts)
    return several(list(names), 4) or None
