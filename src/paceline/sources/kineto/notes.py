"""Notes on the way in which computes and waits of profiles were found, and its certainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Runs of kernels by launching thread are a guess, but their counts are checked.
CERTAINTY_RUNS = 0.8

#: With several chunks per stage, Megatron's interleaved order is also assumed.
CERTAINTY_CHUNKS = 0.65

#: Waits follow the rules of one version of FSDP; the profile's ranges name its units.
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
        by_rule: these waits follow from FSDP2's rules, not from events of the profile.
        programmed: launches and waits of the host cut computes.
        on_host: there are no kernels.
        hidden_waits: number of all-to-alls of several replicas within passes that nothing cuts.
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
                "step's last backward do not count"
            )
        if self.hidden_waits:
            notes.append(
                f"{self.hidden_waits} all-to-alls run within forwards and backwards: the ranks' "
                "waits there count as compute. So S may be too low and a slow rank may look like "
                "the others; profile with enable_cuda_sync_events"
            )
        if self.overlapped:
            notes.append(
                "buckets of gradients overlap backwards, which are cut where buckets start; the "
                "profile has no stream events, so by DDP's rule the end of a backward waits for "
                "all buckets"
            )
        if self.by_rule:
            notes.append(
                "the profiles have no stream waits, so waits for FSDP's gathers and reductions "
                "follow the rules of torch 2.13; profile with enable_cuda_sync_events to record "
                "them"
            )
        elif self.streamed:
            notes.append(
                "computes are cut where streams waited for others (enable_cuda_sync_events): "
                "after the event that a collective waits for, and before the one that waits for it"
            )
        if self.programmed:
            notes.append(
                "computes are cut where the host launched collectives (c10d) and where it waited "
                "until they ended (gloo). If no rank ever waited for one, a rule says where it "
                "was needed"
            )
        elif self.on_host:
            notes.append(
                "times are the host's; a transfer ends when the first side has waited for it"
            )
        return notes
