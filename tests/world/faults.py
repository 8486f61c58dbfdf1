"""What can be wrong with a job, each with the cause and place that a diagnosis should name."""

from __future__ import annotations

from dataclasses import dataclass

Position = tuple[int, int]  # (dp, stage)


@dataclass(frozen=True)
class SlowMachine:
    """The GPUs of a worker compute ``factor`` times as long, in this share of the steps."""

    dp: int
    stage: int
    factor: float
    share: float = 1.0

    cause = "worker"


@dataclass(frozen=True)
class HeavyEnds:
    """Embedding and loss cost as much as this many layers (what-if paper, 5.2)."""

    first: float = 0.0
    last: float = 0.0

    cause = "stage-imbalance"


@dataclass(frozen=True)
class SlowLink:
    """What two machines send each other takes ``factor`` times as long.

    The machines are those of ``dp`` at ``low`` and the stage behind it. It is the path between the
    two that is slow: with either machine in another place it idles. ``share``: of its messages.
    """

    dp: int
    low: int
    factor: float
    share: float = 1.0

    cause = "link"


@dataclass(frozen=True)
class SlowNic:
    """A machine's NIC slows the collectives that it takes part in, in this share of the steps.

    ``messages``: the machine's sends and receives as well.
    """

    dp: int
    stage: int
    factor: float
    share: float = 1.0
    messages: bool = False

    cause = "dp-network"


@dataclass(frozen=True)
class LateMember:
    """A machine finishes its part of some collectives ``seconds`` after the others."""

    dp: int
    stage: int
    seconds: float
    kinds: tuple[str, ...]

    cause = "dp-network"


@dataclass(frozen=True)
class UnevenData:
    """Microbatches whose layers cost different amounts.

    ``cv``: coefficient of variation of that cost. ``max_tokens``: instead, sequences are drawn and
    packed into microbatches of so many tokens (what-if paper, 5.3).
    """

    cv: float = 0.0
    max_tokens: int = 0

    cause = "sequence-length"


@dataclass(frozen=True)
class Pauses:
    """Python's garbage collector stops a forward now and then (what-if paper, 5.4)."""

    probability: float
    seconds: float

    cause = "gc"


@dataclass(frozen=True)
class Delay:
    """Time passes before every operation of a kind; ``spread`` is its coefficient of variation."""

    kind: str
    seconds: float
    spread: float = 0.3

    cause = "launch-delay"


@dataclass(frozen=True)
class Loading:
    """Stage 0 waits for its data before the first compute of a step; ``share``: of the steps."""

    seconds: float
    share: float = 1.0
    spread: float = 0.3

    cause = "launch-delay"


Fault = (
    SlowMachine
    | HeavyEnds
    | SlowLink
    | SlowNic
    | LateMember
    | UnevenData
    | Pauses
    | Delay
    | Loading
)
