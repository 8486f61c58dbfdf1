"""Measured seconds of a network's operators: a file of ``paceline profile --layers``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import ModelError
from paceline.files import text_writer, write_files
from paceline.networks.demand import PASSES, Array, Mask
from paceline.networks.layer import LayerNetwork

SCHEMA, VERSION = "paceline-layer-profile", 1


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """Seconds of operators on one device.

    Attributes:
        device: its name from the driver or the system.
        device_kind: "cuda" or "cpu".
        torch: version of PyTorch.
        date: date of the measurement, ISO 8601.
        network: name of the network.
        batch: number of samples in each run.
        precision: "fp32", "tf32" or "amp".
        channels_last: layout of images.
        seconds: operator (``operator_key``) -> forward, gradient of input, gradient of weights.
        left_out: operators without a time, with reasons.
    """

    device: str
    device_kind: str
    torch: str
    date: str
    network: str
    batch: int
    precision: str
    channels_last: bool
    seconds: Mapping[str, tuple[float, float, float]]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def times(self, network: LayerNetwork) -> tuple[Array, Mask]:
        """([pass, layer] seconds of one sample, [layer] whether they were measured)."""
        seconds = np.zeros((PASSES, len(network.layers)))
        known = np.zeros(len(network.layers), dtype=np.bool_)
        for index in range(len(network.layers)):
            measured = self.seconds.get(operator_key(network, index))
            if measured is not None:
                seconds[:, index] = measured
                known[index] = True
        return seconds / self.batch, known

    def check(self, precision: str, *, channels_last: bool) -> None:
        """Refuse a precision or layout that differs from the profile's.

        Raises:
            ModelError: one differs.
        """
        own = f"{self.precision}, channels {'last' if self.channels_last else 'first'}"
        asked = f"{precision}, channels {'last' if channels_last else 'first'}"
        if own != asked:
            raise ModelError(f"the profile is of {own}, not of {asked}; profile that, too")


def operator_key(network: LayerNetwork, index: int) -> str:
    """Key of an operator: operators with equal keys take equal times."""
    layer = network.layers[index]
    window = None if layer.window is None else asdict(layer.window)
    shapes = [network.in_shapes(index), layer.out_shape, layer.parameters]
    return json.dumps([layer.op or layer.kind, shapes, window, layer.groups, layer.in_place])


def save_layer_profile(profile: LayerProfile, path: Path, *, force: bool = False) -> None:
    """Write the profile atomically.

    Raises:
        OutputError: the file exists and ``force`` is not given, or it cannot be written.
    """
    about = {"schema": SCHEMA, "version": VERSION, **asdict(profile)}
    write_files({path: text_writer(json.dumps(about, indent=1) + "\n")}, force=force)


def is_layer_profile(path: Path) -> bool:
    """Whether a file begins like a profile of layers, not like a language model's."""
    try:
        with path.open(encoding="utf-8") as file:
            return f'"{SCHEMA}"' in file.read(200)
    except (OSError, UnicodeDecodeError):
        return False  # the other reader reports the error


def load_layer_profile(path: Path) -> LayerProfile:
    """Read a file.

    Raises:
        ModelError: it cannot be read, has a later version, or a field is missing or wrong.
    """
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if about["schema"] != SCHEMA or about["version"] != VERSION:
            raise ModelError(f"{path} is of another version; profile again")
        about.pop("schema"), about.pop("version")
        rows: dict[str, Any] = about.pop("seconds")
        seconds = {key: _passes(values) for key, values in rows.items()}
        profile = LayerProfile(**about, seconds=seconds)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is no profile of layers: {error}") from None
    if not (isinstance(profile.batch, int) and profile.batch >= 1 and seconds):
        raise ModelError(f"{path} is no profile of layers: it has no batch, or no operator")
    return profile


def _passes(values: Any) -> tuple[float, float, float]:
    forward, of_input, of_weights = map(float, values)
    if not all(math.isfinite(x) and x >= 0 for x in (forward, of_input, of_weights)):
        raise ValueError(f"seconds {values}")
    return forward, of_input, of_weights
