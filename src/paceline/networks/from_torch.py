"""Networks from PyTorch modules, which run once with tensors that have shapes but no values.

A ``FakeTensorMode`` replaces weights and inputs, so nothing is loaded or computed. It was checked
with torch 2.13. ``torch_trace`` records the operators.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ModelError
from paceline.extras import pip_install
from paceline.networks.layer import LayerNetwork

if TYPE_CHECKING:
    import torch

    from paceline.networks.torch_trace import Trace

#: Batch normalization needs two samples in training.
_MIN_BATCH = 2


def read_network(module: Any, example_inputs: Any, *, name: str = "") -> LayerNetwork:
    """The layers of a module in training, in execution order.

    Args:
        module: an ``nn.Module`` on any device (also meta), or an exported program. It is unchanged.
        example_inputs: a tensor, or the arguments of ``module(*example_inputs)``; the batch comes
            first. Only shapes and types are used.
        name: name of the network; default: the module's class.

    Raises:
        ModelError: torch is missing, or the module cannot run with these inputs, or it needs values
            of a real run. In the last case the message names the submodule and the line.
    """
    try:
        import torch
    except ImportError:
        raise ModelError(f"networks from PyTorch need torch; {pip_install('profile')}") from None
    if isinstance(module, torch.export.ExportedProgram):
        module = module.module()
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"a network is a torch.nn.Module, not a {type(module).__name__}")
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError("a ScriptModule hides its operators; give the module it was made of")
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
    if not isinstance(inputs, Sequence) or not any(isinstance(x, torch.Tensor) for x in inputs):
        raise ModelError("example_inputs must be a tensor or a sequence with one at least")
    trace = _run(module, inputs)
    return trace.network(name or type(module).__name__)


def _run(module: torch.nn.Module, inputs: Sequence[Any]) -> Trace:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from paceline.networks.torch_trace import DropoutMode, Trace, TraceMode

    first = next(x for x in inputs if isinstance(x, torch.Tensor))
    if first.dim() < 2:
        raise ModelError(f"an input of the shape {tuple(first.shape)} has no batch and channels")
    given = first.shape[0]
    batch = max(given, _MIN_BATCH)
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def stand_in(tensor: torch.Tensor, *, grow: bool = False) -> torch.Tensor:
        shape = list(tensor.shape)
        if grow and shape and shape[0] == given:
            shape[0] = batch
        return torch.empty(shape, dtype=tensor.dtype, device="cpu")

    with ExitStack() as stack:
        stack.enter_context(_training(module))
        stack.enter_context(fake)
        state = dict(module.named_buffers(remove_duplicate=False))
        replaced = {name: stand_in(buffer) for name, buffer in state.items()}
        parameters = dict(module.named_parameters(remove_duplicate=False))
        stands: dict[int, torch.Tensor] = {}
        for parameter in parameters.values():
            stands[id(parameter)] = stand_in(parameter).requires_grad_(parameter.requires_grad)
        replaced |= {name: stands[id(parameter)] for name, parameter in parameters.items()}
        arguments = tuple(
            stand_in(x, grow=True) if isinstance(x, torch.Tensor) else x for x in inputs
        )
        trace = Trace(batch, arguments, tuple(stands.values()))
        stack.enter_context(_names(module, trace))
        stack.enter_context(DropoutMode())
        stack.enter_context(TraceMode(trace))
        stack.enter_context(torch.enable_grad())
        try:
            torch.func.functional_call(module, replaced, arguments)
        except Exception as error:
            raise _explained(error, module, trace) from error
    return trace


@contextmanager
def _training(module: torch.nn.Module) -> Iterator[None]:
    """A context with all submodules in training mode; their modes are restored."""
    modes = [(child, child.training) for child in module.modules()]
    try:
        for child, _ in modes:  # not train(), which graph modules of torch.export refuse
            child.training = True
        yield
    finally:
        for child, mode in modes:
            child.training = mode


@contextmanager
def _names(module: torch.nn.Module, trace: Trace) -> Iterator[None]:
    """Keep the name of the running module in ``trace.scope``."""
    from torch.nn.modules import module as hooks

    names = {id(child): name for name, child in module.named_modules()}

    def enter(child: torch.nn.Module, _: Any) -> None:
        trace.scope.append(names.get(id(child), ""))

    def leave(*_: Any) -> None:
        trace.scope.pop()

    handles = (
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _explained(error: Exception, module: torch.nn.Module, trace: Trace) -> ModelError:
    """Advice about a forward pass that failed."""
    from torch._subclasses import fake_tensor

    name = next((scope for scope in reversed(trace.scope) if scope), "")
    name = name or type(module).__name__
    where = f"module {name}{_line(error)}"
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, TypeError) and "forward() " in text and "argument" in text:
        return ModelError(f"{where}: {text}; give one example input for each argument")
    if isinstance(error, fake_tensor.DynamicOutputShapeException):
        return ModelError(
            f"{where}: the shape that {error.func} makes depends on values (dynamic shapes); give "
            "a module whose shapes follow from those of its inputs"
        )
    values = fake_tensor.DataDependentOutputException
    if isinstance(error, values) or "data-dependent" in text.lower():
        return ModelError(
            f"{where}: the module looks at values of tensors (a data-dependent branch), which "
            "only a real run has; give a module without it"
        )
    return ModelError(f"{where} does not run with these inputs: {type(error).__name__}: {text}")


def _line(error: Exception) -> str:
    """The deepest line of the module's own code."""
    import torch

    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*ours, "<"))
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
