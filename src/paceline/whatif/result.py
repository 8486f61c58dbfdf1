"""The finished result of a what-if analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paceline.graph import ClockOffsets
from paceline.trace import Job
from paceline.trace.warning import Warning
from paceline.whatif.critical_path import CriticalPath
from paceline.whatif.lasting import Lasting
from paceline.whatif.modes import TwoModes, two_modes


@dataclass(frozen=True)
class LaunchDelay:
    """Cost of launch delays: step time with only these delays replayed, over T (>= about 1).

    Attributes:
        by_kind: kind label -> cost of the delays of this kind's ops only.
        step_start: cost of the delays at the start of a step only. These are delays of ops that
            wait for nothing and of each worker's first compute (data loading shows there).
    """

    by_kind: Mapping[str, float]
    step_start: float


@dataclass(frozen=True)
class WhatIf:
    """How much stragglers cost, and which parts of the job cost it (what-if paper, 3.3, 5.1, 5.2).

    All slowdowns are ratios of mean step times. ``S_x`` is the step time with only x measured and
    all else ideal, over T_ideal.

    Attributes:
        job: degrees of parallelism.
        steps: [step] step numbers analysed.
        slowdown: S = T / T_ideal (Eq. 1).
        slowdown_paper: S with the paper's reference for every kind; differs only where
            ``slow_mode_shares`` names kinds.
        waste: 1 - 1/S, the share of GPU time lost (Eq. 3).
        discrepancy: |T - traced mean step| / traced (paper, section 6).
        launch_slowdown: traced mean step / T.
        replay_error: the discrepancy with launch delays replayed; shows clamping and bugs only.
        traced_s, simulated_s, ideal_s: [step] step times, seconds.
        by_step: step number -> its time / T_ideal of that step.
        by_kind: kind label -> S_x (Eq. 2).
        by_stage: stage -> S_x.
        by_replica: data-parallel rank -> S_x.
        by_worker: [pp, dp] exact S_w (Eq. 4).
        by_kind_by_step: kind label -> [step] S_x.
        by_stage_by_step: [step, pp] S_x.
        by_replica_by_step: [step, dp] S_x.
        by_worker_by_step: [step, pp, dp] S_w.
        slowest_workers: the 3% (rounded up) with the highest S_w as (dp, pp, S_w), worst first.
        m_w: share of T - T_ideal that vanishes if the slowest workers are ideal (Eq. 5); None where
            T - T_ideal is under 0.1% of T.
        m_w_paper: M_W with workers chosen by the paper's min(S of DP rank, S of PP rank).
        m_s: the share that vanishes if the last stage is ideal; 0 where there is one stage.
        m_w_only, m_s_only: the converse: (T with only these measured - T_ideal) / (T - T_ideal).
        launch_delay: cost of launch delays, by kind.
        critical_path: which operations on which workers make up each step as it was (launch delays
            replayed).
        clamped: values below -10 ms that became 0, by kind.
        clocks: estimated clock offsets.
        microbatches: [dp] microbatches of each replica.
        not_judged: kinds whose lasting slowness cannot show, since they have no peers.
        slow_mode_shares: kind -> share of the steps in which it is slow. It has the kinds judged
            against their own fast mode (:class:`paceline.whatif.ideal.Reference`).
        left_out_steps: step number -> why it was not analysed.
        doubts: notes for the user; the note of the trace's reader has no code.
        lasting: the slowdown of the typical step, where passes are recorded in parts. Verdicts and
            findings rest on it, because all passing variation adds up in S.
    """

    job: Job
    steps: npt.NDArray[np.int64]
    slowdown: float
    slowdown_paper: float
    waste: float
    discrepancy: float
    launch_slowdown: float
    replay_error: float
    traced_s: npt.NDArray[np.float64]
    simulated_s: npt.NDArray[np.float64]
    ideal_s: npt.NDArray[np.float64]
    by_step: Mapping[int, float]
    by_kind: Mapping[str, float]
    by_stage: Mapping[int, float]
    by_replica: Mapping[int, float]
    by_worker: npt.NDArray[np.float64]
    by_kind_by_step: Mapping[str, npt.NDArray[np.float64]]
    by_stage_by_step: npt.NDArray[np.float64]
    by_replica_by_step: npt.NDArray[np.float64]
    by_worker_by_step: npt.NDArray[np.float64]
    slowest_workers: tuple[tuple[int, int, float], ...]
    m_w: float | None
    m_w_paper: float | None
    m_s: float | None
    m_w_only: float | None
    m_s_only: float | None
    launch_delay: LaunchDelay
    critical_path: CriticalPath
    clamped: Mapping[str, Mapping[str, int]]
    clocks: ClockOffsets
    microbatches: npt.NDArray[np.int64]
    not_judged: tuple[str, ...]
    slow_mode_shares: Mapping[str, float]
    left_out_steps: Mapping[int, str]
    doubts: tuple[Warning, ...]
    lasting: Lasting | None = None

    #: Below this slowdown stragglers count as harmless.
    HEALTHY_BELOW = 1.03
    #: Below this slowdown the reference is slower than the job, so it shows nothing.
    REFERENCE_FAILS_BELOW = 0.99
    #: Above this discrepancy the paper drops a trace (section 6).
    DOUBTFUL_ABOVE = 0.05

    @property
    def warnings(self) -> tuple[str, ...]:
        """The doubts in words."""
        return tuple(doubt.text for doubt in self.doubts)

    @cached_property
    def step_modes(self) -> TwoModes | None:
        """The traced step times in two modes; None where there is one."""
        return two_modes(self.traced_s)

    @property
    def lasting_slowdown(self) -> float:
        """S of the typical step; S itself where passes are whole."""
        return self.slowdown if self.lasting is None else self.lasting.slowdown

    @property
    def straggling(self) -> bool:
        """Whether stragglers cost enough to look for causes."""
        return self.lasting_slowdown >= self.HEALTHY_BELOW

    @property
    def healthy(self) -> bool:
        """Whether stragglers cost next to nothing, as far as the reference and the steps tell."""
        judged = self.slowdown >= self.REFERENCE_FAILS_BELOW and self.step_modes is None
        return judged and not self.straggling

    @property
    def even(self) -> bool:
        """Whether all replicas have equally many microbatches; uneven work does not show in S."""
        return bool((self.microbatches == self.microbatches[0]).all())

    @property
    def doubtful(self) -> bool:
        """Whether unrecorded delays make the simulation differ from the trace by more than 5%."""
        return self.discrepancy > self.DOUBTFUL_ABOVE
