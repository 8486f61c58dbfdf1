"""How the computes and waits of some profiles were found, in words, and with what certainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Runs of kernels by launching thread are a guess, but their counts are checked.
CERTAINTY_RUNS = 0.8

#: With several chunks per stage, Megatron's interleaved order is also assumed.
CERTAINTY_CHUNKS = 0.65

#: Waits by the rules of one version of FSDP; the ranges of the profile name its units.
CERTAINTY_RULES = 0.9

#: Waits within passes count as compute: a slow rank looks like the others.
CERTAINTY_HIDDEN_WAITS = 0.5


@dataclass(frozen=True)
class Way:
    """How a job's profiles were read.

    Attributes:
        runs: computes are runs of kernels, not ranges.
        overlapped: buckets of gradients cut backwards, by a rule.
        streamed: stream waits cut computes.
        by_rule: these waits are FSDP2's rules, not events of the profile.
        programmed: launches and waits of the host cut computes.
        on_host: there are no kernels.
        hidden_waits: all-to-alls of several replicas within passes, where nothing cuts computes.
    """

    runs: bool
    overlapped: bool
    streamed: bool
    by_rule: bool
    programmed: bool
    on_host: bool
    hidden_waits: int = 0

    def certainty(self, vpp_size: int) -> float:
        """0 to 1: certainty of the computes, with ``vpp_size`` chunks per stage."""
        certainty = CERTAINTY_RULES if self.by_rule else 1.0
        if self.runs:
            certainty *= CERTAINTY_RUNS if vpp_size == 1 else CERTAINTY_CHUNKS
        if self.hidden_waits:
            certainty *= CERTAINTY_HIDDEN_WAITS
        return certainty

    def notes(self, aside: Mapping[str, int]) -> list[str]:
        """The inferences; ``aside`` counts runs that belong to no microbatch."""
        notes = []
        if self.runs:
            notes.append(
                "computes are runs of kernels between calls to send and receive; "
                f"{aside['too short']} short runs and {aside['after the last backward']} after a "
                "step's last backward are none"
            )
        if self.hidden_waits:
            notes.append(
                f"{self.hidden_waits} all-to-alls run within forwards and backwards: what ranks "
                "wait there counts as their compute, so S may be too low and a slow rank look like "
                "the others; profile with enable_cuda_sync_events"
            )
        if self.overlapped:
            notes.append(
                "buckets of gradients overlap backwards: these are cut where buckets start; that "
                "all are awaited behind the backward is a rule (DDP), no stream event of the "
                "profile"
            )
        if self.by_rule:
            notes.append(
                "no stream waits are in the profiles, so what waits for FSDP's gathers and "
                "reductions is told by the rules of torch 2.13; profile with "
                "enable_cuda_sync_events to know it"
            )
        elif self.streamed:
            notes.append(
                "computes are cut where streams waited for others (enable_cuda_sync_events): "
                "behind what a collective waits for, and before what waits for it"
            )
        if self.programmed:
            notes.append(
                "computes are cut where the host launched collectives (c10d) and where it stood "
                "until they ended (gloo); where nobody ever waited for one, a rule says where it "
                "was needed"
            )
        elif self.on_host:
            notes.append(
                "times are the host's; a transfer ends when the first side has waited for it"
            )
        return notes
