"""Gather parameters earlier: launch the gather of a unit some units ahead (FSDP)."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import NotApplicableError, RemedyError
from paceline.graph.program_steps import Pass, reduced_for
from paceline.remedies.outcome import need_gain, outcome
from paceline.remedies.programs import Replica, edited, needed_gathers, regraphed
from paceline.remedies.remedy import Case, Prediction, Remedy, RemedyKind
from paceline.trace import OpKind

#: Distances to compare. Each further unit keeps one more unit's parameters in memory.
DISTANCES = (1, 2, 4)

#: The proposed distance is the shortest that saves this share of the best saving.
ENOUGH_SHARE = 0.95

#: Place of a step in a changed program: the recorded place, then the order among the steps inserted
#: behind it.
Key = tuple[int, int, int]


def propose(case: Case) -> Remedy:
    """Launch the gather of each unit some units ahead of the compute that needs it.

    Options: ``distance``, the number of units ahead; the default is the shortest that saves enough.

    Raises:
        RemedyError: the requested distance is not a positive number of units.
        NotApplicableError: nothing is gathered, or earlier launches gain almost nothing.
    """
    requested = case.options.get("distance")
    if requested is not None and int(requested) < 1:
        raise RemedyError(f"a distance of {requested} units is not possible; give 1 or more")
    if not (case.measured.graph.kind == OpKind.PARAMS_ALL_GATHER).any():
        raise NotApplicableError("the trace has no gather of parameters (params-all-gather)")
    distances = DISTANCES if requested is None else (int(requested),)
    programs = {distance: _ahead(case, distance) for distance in distances}
    predictions = _predictions(case, programs)
    distance = _shortest(case, predictions)
    after = predictions[distance]
    units = "1 unit" if distance == 1 else f"{distance} units"
    need_gain(case, after, f"gathering parameters {units} ahead")
    now_s = case.before.mean_s
    table = [
        {"distance": d, "step_time_s": p.mean_s, "gain": 1 - p.mean_s / now_s}
        for d, p in predictions.items()
    ]
    return outcome(
        case,
        KIND,
        f"gather parameters {units} ahead of the compute that needs them",
        after,
        {"distance": distance, "compared": table},
        notes=(
            "FSDP2: set_modules_to_forward_prefetch and set_modules_to_backward_prefetch; where "
            "gathers block the host (CPU), also _set_unshard_async_op(True)",
            f"memory: the gathered parameters of up to {units} more at a time",
            "computes are assumed to be as fast beside a gather as alone; the interval includes "
            "the gain if gathers and reductions cannot share the network",
            "blocking gathers that were recorded early stay in passes without reductions: there "
            "the gain may be larger",
        ),
        otherwise=[_predicted(case, programs[distance], one_network=True)],
    )


def _ahead(case: Case, distance: int) -> list[Replica]:
    """The programs with all gathers launched ``distance`` units ahead."""

    def edit(replica: Replica) -> None:
        for stage in range(len(replica.steps)):
            gather_ahead(replica, stage, distance)

    return edited(case.measured, edit)


def _predictions(case: Case, programs: dict[int, list[Replica]]) -> dict[int, Prediction]:
    """Distance -> prediction of the step; equal programs are simulated once."""
    predictions: dict[int, Prediction] = {}
    for distance, replicas in programs.items():
        same = (d for d in predictions if _steps(programs[d]) == _steps(replicas))
        alike = next(same, None)
        predictions[distance] = _predicted(case, replicas) if alike is None else predictions[alike]
    return predictions


def _steps(replicas: list[Replica]) -> list[list[list[int]]]:
    return [replica.steps for replica in replicas]


def _predicted(case: Case, replicas: list[Replica], *, one_network: bool = False) -> Prediction:
    new = regraphed(case.measured, replicas, case.delays, one_network=one_network)
    return case.predicted(new.durations, new.delays)


def _shortest(case: Case, predictions: dict[int, Prediction]) -> int:
    """The shortest distance that saves nearly as much as the best."""
    now_s = case.before.mean_s
    most = now_s - min(prediction.mean_s for prediction in predictions.values())
    for distance, prediction in predictions.items():
        if now_s - prediction.mean_s >= ENOUGH_SHARE * most:
            return distance
    return min(predictions)


def gather_ahead(replica: Replica, stage: int, distance: int) -> None:
    """Move the gathers of a stage's program some units ahead, in place; none moves back.

    The gather of a unit is launched when the parameters of the unit ``distance`` before it in the
    pass have arrived. The gathers of the first units are launched when the first unit's parameters
    have arrived. As in frameworks, a pass does not gather for the next pass.
    """
    steps = replica.steps[stage]
    place: dict[int, Key] = {step: (at, 0, 0) for at, step in enumerate(steps)}
    passes = needed_gathers(replica, stage)
    _await_where_needed(replica, stage, passes, place)
    for gathers in _by_pass(passes, place).values():
        for number, gather in enumerate(gathers[1:], 1):
            at, order, _ = place[~gathers[max(number - distance, 0)]]
            place[gather] = min(place[gather], (at, order + 1, number))
    steps.sort(key=place.__getitem__)


def _by_pass(passes: dict[int, Pass], place: dict[int, Key]) -> dict[Pass, list[int]]:
    """Pass -> its gathers, in the order in which the program waits for them."""
    gathers: dict[Pass, list[int]] = {}
    for gather in sorted(passes, key=lambda op: place[~op]):
        gathers.setdefault(passes[gather], []).append(gather)
    return gathers


def _await_where_needed(
    replica: Replica,
    stage: int,
    passes: dict[int, Pass],
    place: dict[int, Key],
) -> None:
    """Move the waits of gathers that block to the place where a backward needs the parameters.

    FSDP launches the gather of the next unit in front of a unit's backward. A blocking gather stops
    the program there, though its parameters are needed only after that backward. The reduction of
    the previous unit marks the place, for it follows the backward of its unit.
    """
    steps = replica.steps[stage]
    reductions: dict[Pass, list[int]] = {}
    for op, of_pass in reduced_for(replica.ops, steps).items():
        reductions.setdefault(of_pass, []).append(op)
    follower: dict[tuple[object, ...], object] = {}  # unit -> the next unit, if it comes late
    late: list[tuple[list[int], int]] = []
    for of_pass, gathers in _by_pass(passes, place).items():
        if of_pass[0] != OpKind.BACKWARD_COMPUTE:
            continue
        for number, gather in enumerate(gathers):
            if place[~gather][0] != place[gather][0] + 1:
                continue  # it does not block
            if of_pass not in reductions:
                late.append((gathers, number))
                continue
            before = _reduction_before(replica, gather, reductions[of_pass])
            if before is None or place[before] < place[~gather]:
                continue
            at = _behind(steps, place[before][0])
            if number + 1 < len(gathers):
                following = gathers[number + 1]
                at = max(at, place[following][0] - 1)
                follower[replica.unit(gather)] = replica.unit(following)
            place[~gather] = (at, 1, 0)
    for gathers, number in late:  # passes without reductions follow those that have them
        unit, following_units = replica.unit(gathers[number]), gathers[number + 1 : number + 2]
        for following in following_units:
            if follower.get(unit) == replica.unit(following):
                place[~gathers[number]] = (place[following][0] - 1, 1, 0)


def _reduction_before(replica: Replica, gather: int, reductions: Sequence[int]) -> int | None:
    """The last reduction in a pass of the unit before a gather's unit."""
    units = [replica.unit(op) for op in reductions]
    if replica.unit(gather) not in units:
        return None
    first = units.index(replica.unit(gather))
    return reductions[first - 1] if first else None


def _behind(steps: Sequence[int], at: int) -> int:
    """Index of the last of the waits that directly follow a step; the step's own without waits."""
    while at + 1 < len(steps) and steps[at + 1] < 0:
        at += 1
    return at


KIND = RemedyKind(
    "prefetch",
    "gather the parameters of a unit some units ahead of its compute",
    frozenset(),
    propose,
    architecture=True,
    whole_passes=False,
    of_programs=True,
)
