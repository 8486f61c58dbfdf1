"""Doubts about a recording: damaged places, dropped steps and clocks."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.sources.recording.files import RankFile


def doubts(files: Sequence[RankFile]) -> list[str]:
    """The reader's notes on the files."""
    found = []
    torn = [file for file in files if file.torn_bytes]
    if torn:
        found.append(
            f"{len(torn)} files end in an unfinished block, left out (the first is "
            f"{torn[0].path.name}, {torn[0].torn_bytes} bytes)"
        )
    damaged = [file for file in files if file.damaged]
    if damaged:
        places = sum(file.damaged for file in damaged)
        found.append(
            f"{places} damaged places skipped in {len(damaged)} files ({damaged[0].path.name})"
        )
    dropped = sum(file.dropped[0] for file in files)
    if dropped:
        found.append(f"{dropped} profiled steps of single ranks were dropped while recording")
    if len(files) > 1 and any(file.residual_ns is None for file in files):
        found.append(
            "clocks were not compared while recording; the wall clocks of the hosts are used"
        )
    return found
