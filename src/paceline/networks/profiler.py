"""Times a network's distinct operators with PyTorch: forward, gradients of input and weights.

Each operator runs alone, on random values. torch is imported when a profile is taken. An operator
without an implementation here is left out, and predictions model it.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from paceline.errors import ModelError
from paceline.model.profiler import Clock, Effort, choose_device, device_name, import_torch
from paceline.networks.demand import Demand, demand_of
from paceline.networks.layer import Layer, LayerNetwork
from paceline.networks.layer_profile import LayerProfile, operator_key
from paceline.networks.saved import check_precision

Thunk = Callable[[], Any]
Progress = Callable[[int, int], None]

#: aten name without its suffix -> function of torch.nn.functional.
_ACTIVATIONS = {
    name: name
    for name in ("relu", "gelu", "silu", "hardswish", "hardsigmoid", "hardtanh", "elu", "mish")
} | {"leaky_relu": "leaky_relu", "sigmoid": "sigmoid", "tanh": "tanh"}
_HALF = 2


@dataclass(frozen=True)
class _Passes:
    """Functions of each pass; None: the pass has none."""

    forward: Thunk
    of_input: Thunk | None = None
    of_weights: Thunk | None = None


class _Maker:
    """Makes the passes of layers on a device."""

    def __init__(
        self, torch: Any, device: str, network: LayerNetwork, demand: Demand, batch: int, last: bool
    ) -> None:
        self.torch, self.device, self.network, self.demand = torch, device, network, demand
        self.batch, self.channels_last = batch, last

    def passes(self, index: int) -> _Passes | None:
        """The passes of a layer; None if this version cannot build it."""
        layer = self.network.layers[index]
        make = {
            "conv": self._conv,
            "linear": self._linear,
            "norm": self._norm,
            "activation": self._activation,
            "pool": self._pool,
            "add": self._add,
            "copy": self._copy,
            "multiply": self._multiply,
        }.get(layer.kind)
        return None if make is None else make(index, layer)

    def _tensor(self, shape: Any, index: int, *, half: bool | None = None) -> Any:
        half = self.demand.in_width[index] == _HALF if half is None else half
        dtype = self.torch.float16 if half else self.torch.float32
        tensor = self.torch.randn(tuple(shape), device=self.device, dtype=dtype)
        formats = {4: self.torch.channels_last, 5: self.torch.channels_last_3d}
        if self.channels_last and len(shape) in formats:
            tensor = tensor.to(memory_format=formats[len(shape)])
        return tensor

    def _input(self, index: int) -> Any:
        return self._tensor((self.batch, *self.network.in_shapes(index)[0]), index)

    def _result(self, index: int, layer: Layer) -> Any:
        return self._tensor((self.batch, *layer.out_shape), index)

    def _conv(self, index: int, layer: Layer) -> _Passes | None:
        window = layer.window
        if window is None or window.transposed or not layer.parameters:
            return None
        if any(before != after for before, after in window.padding):
            return None
        x, weight = self._input(index), self._tensor(layer.parameters[0], index)
        gradient = self._result(index, layer)
        padding = [before for before, _ in window.padding]
        zeros = [0] * len(padding)
        options = (list(window.stride), padding, list(window.dilation), False, zeros, layer.groups)
        aten = self.torch.ops.aten

        def backward(of_input: bool) -> Any:
            mask = [of_input, not of_input, False]
            return aten.convolution_backward(gradient, x, weight, None, *options, mask)

        return _Passes(
            lambda: aten.convolution(x, weight, None, *options),
            lambda: backward(True),
            lambda: backward(False),
        )

    def _linear(self, index: int, layer: Layer) -> _Passes | None:
        weights = [shape for shape in layer.parameters if len(shape) == 2]
        if len(weights) != 1:
            return None
        out, into = weights[0]
        rows, rest = divmod(self.batch * self.network.in_elements(index), into)
        if rest or rows * out != self.batch * layer.out_elements:
            return None
        x, gradient = self._tensor((rows, into), index), self._tensor((rows, out), index)
        weight = self._tensor((out, into), index)
        return _Passes(
            lambda: x @ weight.T,
            lambda: gradient @ weight,
            lambda: gradient.T @ x,
        )

    def _norm(self, index: int, layer: Layer) -> _Passes | None:
        x, functional = self._input(index), self.torch.nn.functional
        channels = layer.out_shape[0]
        if "batch_norm" in layer.op:
            state = [self._tensor((channels,), index, half=False) for _ in range(4)]
            mean, deviation, weight, bias = state
            weights = [weight.requires_grad_(), bias.requires_grad_()]
            return self._autograd(
                x,
                lambda y: functional.batch_norm(y, mean, deviation, *weights, training=True),
                weights,
            )
        if "layer_norm" in layer.op and layer.parameters:
            shape = list(layer.parameters[0])
            weights = [self._tensor(shape, index).requires_grad_() for _ in range(2)]
            return self._autograd(x, lambda y: functional.layer_norm(y, shape, *weights), weights)
        return None

    def _activation(self, index: int, layer: Layer) -> _Passes | None:
        name = _ACTIVATIONS.get(layer.op.removeprefix("aten.").removesuffix("_"))
        if name is None:
            return None
        function = getattr(self.torch.nn.functional, name)
        return self._autograd(self._input(index), function, [])

    def _pool(self, index: int, layer: Layer) -> _Passes | None:
        window, functional = layer.window, self.torch.nn.functional
        kinds = {"max_pool": "max_pool", "avg_pool": "avg_pool"}
        kind = next((kinds[name] for name in kinds if f".{name}" in layer.op), None)
        if layer.op == "aten.mean" and layer.out_elements == layer.filters:
            return self._autograd(self._input(index), lambda y: y.flatten(2).mean(2), [])
        if window is None or kind is None or any(a != b for a, b in window.padding):
            return None
        function = getattr(functional, f"{kind}{len(window.kernel)}d")
        padding = [before for before, _ in window.padding]
        return self._autograd(
            self._input(index),
            lambda y: function(y, list(window.kernel), list(window.stride), padding),
            [],
        )

    def _add(self, index: int, layer: Layer) -> _Passes | None:
        shapes = self.network.in_shapes(index)
        if len(shapes) != 2 or shapes[0] != shapes[1]:
            return None
        x, y = self._input(index), self._input(index)
        return _Passes(lambda: x + y)

    def _copy(self, index: int, layer: Layer) -> _Passes | None:
        if layer.op != "aten.clone":
            return None
        return self._autograd(self._input(index), lambda y: y.clone(), [])

    def _multiply(self, index: int, layer: Layer) -> _Passes | None:
        shapes = self.network.in_shapes(index)
        if layer.op.rstrip("_") != "aten.mul" or len(shapes) != 2:
            return None
        x, y = (self._tensor((self.batch, *shape), index) for shape in shapes)
        try:
            return self._autograd(x, lambda z: z * y, [y.requires_grad_()])
        except RuntimeError:  # shapes that other operators have merged
            return None

    def _autograd(self, x: Any, function: Callable[[Any], Any], weights: list[Any]) -> _Passes:
        """Forward without and backward with autograd's graph; all gradients at once."""
        x.requires_grad_()
        result = function(x)
        gradient = self.torch.randn_like(result)

        def forward() -> Any:
            with self.torch.no_grad():
                return function(x)

        def backward() -> Any:
            return self.torch.autograd.grad(result, [x, *weights], gradient, retain_graph=True)

        return _Passes(forward, backward)


def profile_layers(
    network: LayerNetwork,
    *,
    batch: int,
    device: str = "auto",
    precision: str = "fp32",
    channels_last: bool = False,
    effort: Effort | None = None,
    progress: Progress = lambda done, total: None,
) -> LayerProfile:
    """Time each distinct operator of a network once.

    Args:
        network: its layers.
        batch: samples.
        device: "cuda", "cpu" or "auto".
        precision: "fp32", "tf32" or "amp" (fp16 for operators that autocast casts).
        channels_last: layout of images.
        effort: limits of time.
        progress: called with the numbers of finished and of all operators.

    Raises:
        ModelError: torch or the device is missing, the batch is below 1, amp is requested on a CPU,
            or nothing was measured.
    """
    check_precision(precision)
    if batch < 1:
        raise ModelError(f"a batch of {batch}: 1 sample at least")
    torch = import_torch()
    device = choose_device(torch, device)
    if device == "cpu" and precision != "fp32":
        raise ModelError(f"{precision} is timed on a GPU; a CPU takes --precision fp32")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    demand = demand_of(network, precision)
    maker = _Maker(torch, device, network, demand, batch, channels_last)
    clock = Clock(torch, device, effort or Effort())
    seconds: dict[str, tuple[float, float, float]] = {}
    left_out: dict[str, str] = {}
    distinct = dict(_distinct(network))
    for done, (key, index) in enumerate(distinct.items()):
        progress(done, len(distinct))
        name = network.layers[index].name
        try:
            passes = maker.passes(index)
            if passes is None:
                left_out[name] = "not timed by this version"
            else:
                seconds[key] = _timed(passes, clock)
        except (RuntimeError, NotImplementedError) as error:  # out of memory, no such kernel
            left_out[name] = str(error).partition("\n")[0][:120]
            if device == "cuda":
                torch.cuda.empty_cache()
    progress(len(distinct), len(distinct))
    if not seconds:
        raise ModelError("nothing could be measured: " + "; ".join(left_out.values())[:400])
    return LayerProfile(
        device=device_name(torch, device),
        device_kind=device,
        torch=str(torch.__version__),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        network=network.name,
        batch=batch,
        precision=precision,
        channels_last=channels_last,
        seconds=seconds,
        left_out=left_out,
    )


def _distinct(network: LayerNetwork) -> Iterator[tuple[str, int]]:
    seen = set()
    for index, layer in enumerate(network.layers):
        key = operator_key(network, index)
        if layer.kind != "view" and key not in seen:
            seen.add(key)
            yield key, index


def _timed(passes: _Passes, clock: Clock) -> tuple[float, float, float]:
    def median(thunk: Thunk | None) -> float:
        return 0.0 if thunk is None else statistics.median(clock.samples([thunk]))

    return median(passes.forward), median(passes.of_input), median(passes.of_weights)
