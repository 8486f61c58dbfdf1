"""Agreement between the ranks of an imported trace."""

from __future__ import annotations

import numpy as np

from paceline.errors import TraceError
from paceline.trace import OpKind, Trace
from paceline.trace.kinds import DP_KINDS

ADVICE = "record the step whole on all ranks, or leave it out with --steps"


def check_peers(trace: Trace, where: str) -> None:
    """Check that the ranks of a trace agree on the ops of each step.

    Every worker has computes in every step, and all stages of a replica run the same ones. A stage
    received what its neighbour sent. All members of a data-parallel collective ran it.

    Raises:
        TraceError: they disagree; the message names the ops.
    """
    counts, steps = trace.counts, trace.steps
    silent = np.argwhere(counts.sum(axis=3) == 0)
    if len(silent):
        s, dp, pp = silent[0]
        raise TraceError(
            f"{where}: {trace.job.worker_name(dp, pp)} has no ops in step {steps[s]}, others have; "
            f"is a rank's file missing or cut off? Else {ADVICE}"
        )
    _check_computes(trace, where)
    for send, recv, direction in (
        (OpKind.FORWARD_SEND, OpKind.FORWARD_RECV, 1),
        (OpKind.BACKWARD_SEND, OpKind.BACKWARD_RECV, -1),
    ):
        n_sent = counts[..., send]
        n_received = np.roll(counts[..., recv], -direction, axis=2)
        wrong = n_sent != n_received
        if trace.job.vpp_size == 1:  # no chunk follows the last stage's
            wrong[:, :, -1 if direction == 1 else 0] = False
        for s, dp, pp in np.argwhere(wrong)[:1]:
            raise TraceError(
                f"{where}: {_replica(trace, dp)}stage {pp} sent {n_sent[s, dp, pp]} "
                f"{send.label.split('-')[0]}s in step {steps[s]}, stage "
                f"{(pp + direction) % trace.job.pp_size} received {n_received[s, dp, pp]}; {ADVICE}"
            )
    for kind in sorted(DP_KINDS):
        of_kind = counts[..., kind]
        for s, dp, pp in np.argwhere(of_kind != of_kind[:, :1])[:1]:
            one, other = trace.job.replica_name(0), trace.job.replica_name(dp)
            raise TraceError(
                f"{where}: stage {pp} ran {of_kind[s, 0, pp]} {kind.label} in step {steps[s]} on "
                f"{one}, but {of_kind[s, dp, pp]} on {other}; {ADVICE}"
            )


def _check_computes(trace: Trace, where: str) -> None:
    """Check that the stages of a replica run the same number of forwards and of backwards."""
    computes = (OpKind.FORWARD_COMPUTE, OpKind.BACKWARD_COMPUTE)
    forwards = trace.counts[..., OpKind.FORWARD_COMPUTE]
    for s, dp, pp in np.argwhere(forwards == 0)[:1]:
        raise TraceError(
            f"{where}: {_replica(trace, dp)}stage {pp} has no forwards in step {trace.steps[s]}; "
            f"{ADVICE}"
        )
    if trace.program is not None:  # a program cuts its passes where it launches or waits
        return
    expected = forwards[:, :, 0]
    for kind in computes:
        ran = trace.counts[..., kind]
        for s, dp, pp in np.argwhere(ran != expected[:, :, None])[:1]:
            raise TraceError(
                f"{where}: {_replica(trace, dp)}stage 0 ran {expected[s, dp]} forwards in step "
                f"{trace.steps[s]}, stage {pp} ran {ran[s, dp, pp]} {kind.label.split('-')[0]}s; "
                f"{ADVICE}"
            )


def _replica(trace: Trace, dp: int) -> str:
    return f"{trace.job.replica_name(dp)}, " if trace.job.replicas > 1 else ""
