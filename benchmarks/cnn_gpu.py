"""One GPU: networks of timm against timm's table of an RTX 3090, and against autograd's hooks."""

from __future__ import annotations

import csv
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
from shared_folder import SHARED

from paceline.model.cluster_presets import cluster_preset
from paceline.networks.compute import ComputeConstants, step_seconds
from paceline.networks.demand import Demand, demand_of
from paceline.networks.from_torch import read_network
from paceline.networks.layer import LayerNetwork
from paceline.networks.memory import MemoryConstants, network_memory
from paceline.networks.saved import saved_bytes

LADDER = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
GPU = cluster_preset("rtx3090").gpu


@dataclass(frozen=True)
class Row:
    """A row of timm's table: amp with SGD and momentum on one GPU."""

    model: str
    shape: tuple[int, ...]
    channels_last: bool
    batch: int
    step_s: float


def rows() -> list[Row]:
    path = SHARED / "data" / "cnn" / "public_cnn_throughput.csv"
    with path.open(encoding="utf-8") as file:
        return [
            Row(
                model=row["model"].removeprefix("timm/"),
                shape=tuple(int(size) for size in row["input"].split("x")),
                channels_last=row["precision"] == "amp nhwc",
                batch=int(row["batch_per_gpu"]),
                step_s=float(row["batch_per_gpu"]) / float(row["samples_per_s"]),
            )
            for row in csv.DictReader(file)
            if row["model"].startswith("timm/")
        ]


def module_of(model: str) -> Any:
    import timm
    import torch

    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return timm.create_model(model)


@cache
def network_of(model: str, shape: tuple[int, ...]) -> LayerNetwork | None:
    """None where this timm does not have the model any more."""
    import torch

    try:
        module = module_of(model)
    except RuntimeError as error:
        print(f"left out: {model}: {error}", file=sys.stderr)
        return None
    return read_network(module, torch.empty(2, *shape, device="meta"), name=model)


def pairs() -> Iterator[tuple[Row, LayerNetwork]]:
    for row in rows():
        network = network_of(row.model, row.shape)
        if network is not None:
            yield row, network


def saved(worst: int) -> None:
    """Bytes of one sample, beside what ``saved_tensors_hooks`` sees."""
    errors = {}
    for model, shape in dict.fromkeys((row.model, row.shape) for row in rows()):
        network = network_of(model, shape)
        if network is not None:
            truth = hooked_bytes(module_of(model), shape)
            errors[model] = saved_bytes(network).sum() / truth - 1
    sizes = np.abs(list(errors.values()))
    print(
        f"saved activations of {len(sizes)} networks: worst {sizes.max():.3%}, within 2%: "
        f"{(sizes <= 0.02).sum()}"
    )
    for model in sorted(errors, key=lambda name: -abs(errors[name]))[:worst]:
        print(f"  {model}: {errors[model]:+.3%}")


def hooked_bytes(module: Any, shape: tuple[int, ...]) -> float:
    """By the growth from 2 to 6 samples: what does not grow is not of a sample."""
    totals = [hooked_total(module, (batch, *shape)) for batch in (2, 6)]
    return (totals[1] - totals[0]) / 4


def hooked_total(module: Any, shape: tuple[int, ...]) -> int:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd.graph import saved_tensors_hooks

    from paceline.networks.torch_trace import DropoutMode

    module.train()
    with FakeTensorMode(allow_non_fake_inputs=True), DropoutMode():
        state, parameters = {}, {}
        for name, buffer in module.named_buffers(remove_duplicate=False):
            state[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu")
        for name, tensor in module.named_parameters(remove_duplicate=False):
            stand = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            stand.requires_grad_(tensor.requires_grad)
            state[name] = parameters.setdefault(id(tensor), stand)
        own = {tensor.untyped_storage()._cdata for tensor in state.values()}
        storages, alive = {}, []

        def pack(tensor: Any) -> Any:
            alive.append(tensor)
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                storages[storage._cdata] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            torch.func.functional_call(module, state, (torch.empty(shape, device="cpu"),))
    return sum(storages.values())


def memory(worst: int) -> None:
    """Two questions a row: does its batch fit, and does the next of the ladder not?"""
    found = list(pairs())
    right, misses = memory_answers(found, MemoryConstants())
    questions = 2 * len(found) - sum(row.batch == LADDER[0] for row, _ in found)
    print(f"largest batch: right in {right} of {questions} questions ({right / questions:.1%})")
    for miss in misses[:worst]:
        print(f"  {miss}")
    shares = []
    for part in (0, 1):
        mine = [pair for number, pair in enumerate(found) if number % 4 // 2 == part]
        rest = [pair for number, pair in enumerate(found) if number % 4 // 2 != part]
        shares.append(memory_answers(mine, fit_memory(rest))[0])
    print(f"constants fitted to the other half of the rows: {sum(shares) / questions:.1%}")


def memory_answers(
    found: list[tuple[Row, LayerNetwork]], constants: MemoryConstants
) -> tuple[int, list[str]]:
    right, misses = 0, []
    for row, network in found:
        cells = [(row.batch, True)]
        if row.batch < LADDER[0]:
            cells.append((LADDER[LADDER.index(row.batch) - 1], False))
        for batch, fits in cells:
            total = total_bytes(network, batch, constants)
            if (total <= GPU.memory_bytes) == fits:
                right += 1
            else:
                misses.append(
                    f"{row.model}: {batch} samples {'ran' if fits else 'did not fit'}; "
                    f"predicted {total / 2**30:.1f} GiB"
                )
    return right, misses


@cache
def sample_costs(model: str, shape: tuple[int, ...]) -> tuple[float, float]:
    network = network_of(model, shape)
    assert network is not None
    bare = MemoryConstants(reserved_bytes=0.0, overhead=1.0)
    one, two = (
        network_memory(network, batch, precision="amp", constants=bare).total for batch in (1, 2)
    )
    return 2 * one - two, two - one


def total_bytes(network: LayerNetwork, batch: int, constants: MemoryConstants) -> float:
    """As ``network_memory``, its walk done once for each network."""
    fixed, slope = sample_costs(network.name, network.input_shape)
    return fixed + constants.reserved_bytes + batch * slope * constants.overhead


def fit_memory(found: list[tuple[Row, LayerNetwork]]) -> MemoryConstants:
    """The reserved bytes in the middle of those that answer most, the allocator without loss."""
    grid = np.arange(0.0, 5e9, 0.2e9)
    scores = np.array(
        [
            memory_answers(found, MemoryConstants(reserved_bytes=float(size), overhead=1.0))[0]
            for size in grid
        ]
    )
    best = grid[scores >= scores.max() - 1]
    return MemoryConstants(reserved_bytes=float(np.median(best)), overhead=1.0)


def throughput(worst: int) -> None:
    """Seconds of a step: with the guesses, and with five constants fitted to these rows."""
    demands = {}
    data = []
    for row, network in pairs():
        if row.model not in demands:
            demands[row.model] = demand_of(network, "amp")
        data.append((row, demands[row.model]))
    say("not calibrated", data, ComputeConstants())
    fitted = fit_compute(data)
    ratios = say("five constants fitted", data, fitted)
    print(f"  {fitted}")
    for index in np.argsort(-np.abs(np.log(ratios)))[:worst]:
        row = data[index][0]
        layout = "channels last" if row.channels_last else "channels first"
        print(f"  {row.model}, {layout}: measured over predicted {ratios[index]:.2f}")
    models = sorted(demands)
    folds = []
    for part in range(4):
        mine = set(models[part::4])
        rest = fit_compute([pair for pair in data if pair[0].model not in mine])
        folds.append(measured_ratios([pair for pair in data if pair[0].model in mine], rest))
    describe("fitted to the other three quarters of the networks", np.concatenate(folds))


Data = list[tuple[Row, Demand]]


def measured_ratios(data: Data, constants: ComputeConstants) -> np.ndarray:
    """Measured seconds over predicted ones."""
    return np.array(
        [
            row.step_s
            / step_seconds(
                demand,
                row.batch,
                GPU,
                "amp",
                channels_last=row.channels_last,
                constants=constants,
            )
            for row, demand in data
        ]
    )


def say(what: str, data: Data, constants: ComputeConstants) -> np.ndarray:
    ratios = measured_ratios(data, constants)
    describe(what, ratios)
    return ratios


def describe(what: str, ratios: np.ndarray) -> None:
    # Of samples per second: predicted over measured is measured over predicted seconds.
    errors = np.abs(ratios - 1)
    worst = np.exp(np.abs(np.log(ratios)).max())
    print(
        f"{what}: {len(ratios)} rows, median error {np.median(errors):.1%}, p90 "
        f"{np.quantile(errors, 0.9):.1%}, worst factor {worst:.2f}"
    )


def fit_compute(data: Data) -> ComputeConstants:
    """Coordinate by coordinate, by the mean of the logarithmic errors, each at most 1."""

    def loss(constants: ComputeConstants) -> float:
        errors = np.abs(np.log(measured_ratios(data, constants)))
        return float(np.minimum(errors, 1.0).mean())

    best = ComputeConstants()
    best_loss = loss(best)
    for factor in (1.5, 1.25, 1.1, 1.05):
        best, best_loss = descend(best, best_loss, factor, loss)
    return best


def descend(
    best: ComputeConstants,
    best_loss: float,
    factor: float,
    loss: Callable[[ComputeConstants], float],
) -> tuple[ComputeConstants, float]:
    """Multiply and divide constants by ``factor`` until none of that helps."""
    while True:
        before = best_loss
        for constant in fields(ComputeConstants):
            for step in (factor, 1 / factor):
                value = getattr(best, constant.name) * step
                if constant.name != "kernel_s":
                    value = min(value, 1.0)
                candidate = replace(best, **{constant.name: value})
                size = loss(candidate)
                if size < best_loss - 1e-6:
                    best, best_loss = candidate, size
        if best_loss == before:
            return best, best_loss
