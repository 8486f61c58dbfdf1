"""The order in which a stage computes, written from the papers that proposed it."""

from __future__ import annotations

from collections.abc import Callable

#: (direction "F" or "B", chunk, microbatch)
Work = tuple[str, int, int]


def gpipe(stage: int, stages: int, microbatches: int, chunks: int) -> list[Work]:
    """All forwards, then all backwards (Huang et al. 2019)."""
    forward = [("F", c, m) for c in range(chunks) for m in range(microbatches)]
    return forward + [("B", chunks - 1 - c, m) for _, c, m in forward]


def one_f_one_b(stage: int, stages: int, microbatches: int, chunks: int) -> list[Work]:
    """1F1B (Narayanan et al. 2021, Figure 4, top)."""
    assert chunks == 1, "1F1B has one chunk per stage"
    line = list(range(microbatches))
    forward, backward = [("F", 0, m) for m in line], [("B", 0, m) for m in line]
    return _turns(forward, backward, stages - 1 - stage)


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> list[Work]:
    """Interleaved 1F1B (Narayanan et al. 2021, 2.2) with the warm-up of Megatron-LM."""
    assert microbatches % stages == 0, "interleaving works on groups of as many as stages"
    forward: list[Work] = []
    for group in range(0, microbatches, stages):
        forward += [("F", c, group + i) for c in range(chunks) for i in range(stages)]
    backward = [("B", chunks - 1 - c, m) for _, c, m in forward]
    ahead = 2 * (stages - 1 - stage) + (chunks - 1) * stages
    return _turns(forward, backward, len(forward) if microbatches == stages else ahead)


def _turns(forward: list[Work], backward: list[Work], ahead: int) -> list[Work]:
    """Some forwards ahead, then one forward and one backward in turn, then the other backwards."""
    ahead = min(ahead, len(forward))
    order = forward[:ahead]
    for f, b in zip(forward[ahead:], backward, strict=False):
        order += [f, b]
    return order + backward[len(forward) - ahead :]


SCHEDULES: dict[str, Callable[[int, int, int, int], list[Work]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
}
