"""The process that builds and reads a module. ``read`` starts it and reads its last line.

Only a file that the user named is imported. Its weights have only shapes (meta device).
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

from paceline.errors import ModelError, PacelineError
from paceline.extras import pip_install
from paceline.networks.from_torch import read_network
from paceline.networks.layer import LayerNetwork, Shape, to_mapping


def main(argv: list[str]) -> None:
    """Print one line of JSON: the network and warnings, or an error."""
    source, *texts = argv
    shapes = [tuple(int(size) for size in text.split("x")) for text in texts]
    # Output of the user's file must not mix with the answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        try:
            answer: dict[str, Any] = {"network": to_mapping(build_network(source, shapes))}
        except PacelineError as error:
            answer = {"error": str(error)}
    ours = "unknown operators"
    answer["warnings"] = [str(x.message) for x in remarks if ours in str(x.message)]
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def build_network(source: str, shapes: list[Shape]) -> LayerNetwork:
    """The network of a module, built in this process.

    Raises:
        ModelError: it cannot be built or read.
    """
    try:
        import torch
    except ImportError:
        raise ModelError(f"{source} needs torch; {pip_install('profile')}") from None
    path, _, member = source.rpartition(":")
    module = _build(path, member)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{source} returns a {type(module).__name__}, not a torch.nn.Module")
    usual = getattr(module, "default_cfg", None) or {}
    shapes = shapes or [tuple(usual.get("input_size", (3, 224, 224)))]
    inputs = tuple(torch.empty(2, *shape, device="meta") for shape in shapes)
    return read_network(module, inputs, name=member if not path.endswith(".py") else source)


def _build(path: str, member: str) -> Any:
    """The module, built on the meta device, or on the CPU if it needs values."""
    import torch

    try:
        with torch.device("meta"):
            return _call(path, member)
    except PacelineError:
        raise
    except (NotImplementedError, RuntimeError) as error:
        if "meta" not in str(error).lower():
            raise _failed(path, member, error) from error
    except Exception as error:
        raise _failed(path, member, error) from error
    try:
        return _call(path, member)
    except Exception as error:
        raise _failed(path, member, error) from error


def _failed(path: str, member: str, error: Exception) -> ModelError:
    text = str(error).strip().partition("\n")[0]
    return ModelError(f"{path}:{member} cannot be built: {type(error).__name__}: {text}")


def _call(path: str, member: str) -> Any:
    if path in ("timm", "torchvision"):
        try:
            if path == "timm":
                import timm

                return timm.create_model(member, pretrained=False)
            import torchvision

            return torchvision.models.get_model(member, weights=None)
        except ImportError:
            raise ModelError(f"{path}:{member} needs {path}; install it beside torch") from None
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"there is no file {path}")
    sys.path.insert(0, str(file.resolve().parent))
    names = runpy.run_path(str(file), run_name=file.stem)
    if member not in names:
        raise ModelError(f"{path} has no {member}")
    build = names[member]
    return build() if callable(build) and not hasattr(build, "forward") else build


if __name__ == "__main__":
    main(sys.argv[1:])
