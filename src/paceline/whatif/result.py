"""The result of a what-if analysis."""

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
from paceline.whatif.modes import TwoModes, step_modes


@dataclass(frozen=True)
class LaunchDelay:
    """Cost of launch delays: the mean step time with only some delays, over T without delays.

    Attributes:
        by_kind: kind label -> cost of only the delays of this kind's ops.
        step_start: cost of only the delays at the start of a step, as by data loading. These are
            delays of ops without dependencies, and of each worker's first compute.
    """

    by_kind: Mapping[str, float]
    step_start: float


@dataclass(frozen=True)
class WhatIf:
    """The cost of stragglers, and of each part of the job (what-if paper, 3.3, 5.1, 5.2).

    All slowdowns are ratios of mean step times. ``S_x`` is the step time with only part x as
    measured and all others ideal, over T_ideal.

    Attributes:
        job: degrees of parallelism.
        steps: [step] numbers of the analysed steps.
        slowdown: S = T / T_ideal (Eq. 1).
        slowdown_paper: S with the paper's reference for every kind; differs only if
            ``slow_mode_shares`` has kinds.
        waste: 1 - 1/S, the share of GPU time lost (Eq. 3).
        discrepancy: |T - lasted| / traced mean step (paper, section 6). A step lasted as traced,
            less its overlap with the step before.
        launch_slowdown: lasted / T.
        replay_error: the discrepancy with launch delays replayed; only clamping and bugs cause it.
        traced_s, simulated_s, ideal_s: [step] step times, seconds.
        overlap_s: [step] seconds by which the traced step is longer since the step before still
            ran.
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
        m_w: share of T - T_ideal that vanishes if the slowest workers are ideal (Eq. 5); None if
            T - T_ideal is under 0.1% of T.
        m_w_paper: M_W with workers chosen by the paper's min(S of DP rank, S of PP rank).
        m_s: the share that vanishes if the last stage is ideal; 0 with one stage.
        m_w_only, m_s_only: (T with only these as measured - T_ideal) / (T - T_ideal).
        launch_delay: cost of launch delays, by kind.
        critical_path: critical path of each step, with launch delays.
        clamped: "transfer" and "launch_delay" -> kind label -> number of values below -10 ms, which
            became 0.
        clocks: estimated clock offsets.
        microbatches: [dp] number of the replica's microbatches.
        not_judged: kinds without peers, whose lasting slowness does not show.
        slow_mode_shares: kind -> share of slow steps, for kinds judged against their own fast mode
            (:class:`paceline.whatif.ideal.Reference`).
        left_out_steps: number of a step that was not analysed -> the reason.
        doubts: warnings for the user; a note of the trace's reader has no code.
        lasting: slowdowns of the typical step if passes are recorded in parts, else None. Verdicts
            and findings use them, because passing variation adds up in S.
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
    overlap_s: npt.NDArray[np.float64]
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

    #: Slowdown below which stragglers count as harmless.
    HEALTHY_BELOW = 1.03
    #: Slowdown below which the reference is slower than the job, and shows nothing.
    REFERENCE_FAILS_BELOW = 0.99
    #: Discrepancy above which the paper drops a trace (section 6).
    DOUBTFUL_ABOVE = 0.05

    @property
    def warnings(self) -> tuple[str, ...]:
        """The texts of ``doubts``."""
        return tuple(doubt.text for doubt in self.doubts)

    @cached_property
    def step_modes(self) -> TwoModes | None:
        """The traced step times in two modes; None for a single mode."""
        return step_modes(self.traced_s)

    @property
    def lasted_s(self) -> npt.NDArray[np.float64]:
        """[step] seconds of the traced step less its overlap with the step before."""
        return self.traced_s - self.overlap_s

    @property
    def lost_s(self) -> npt.NDArray[np.float64]:
        """[step] seconds between operations, by launch delays."""
        return self.lasted_s - self.simulated_s

    @property
    def lasting_slowdown(self) -> float:
        """S of the typical step; S itself if passes are whole."""
        return self.slowdown if self.lasting is None else self.lasting.slowdown

    @property
    def straggling(self) -> bool:
        """Whether stragglers cost enough to look for causes."""
        return self.lasting_slowdown >= self.HEALTHY_BELOW

    @property
    def healthy(self) -> bool:
        """Whether stragglers cost little, by a valid reference and step times of a single mode."""
        judged = self.slowdown >= self.REFERENCE_FAILS_BELOW and self.step_modes is None
        return judged and not self.straggling

    @property
    def even(self) -> bool:
        """Whether all replicas have the same number of microbatches, as S hides uneven work."""
        return bool((self.microbatches == self.microbatches[0]).all())

    @property
    def doubtful(self) -> bool:
        """Whether unrecorded delays make the simulation differ from the trace by more than 5%."""
        return self.discrepancy > self.DOUBTFUL_ABOVE
