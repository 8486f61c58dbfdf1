"""A profile: measured seconds of operators on one device, and the file that holds them.

The file is JSON (docs/profile.md). ``profiler`` measures, ``profile_cost`` makes a cost of it.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from paceline.errors import ModelError
from paceline.files import write_files
from paceline.model.cluster import PRECISIONS, Cluster, Gpu
from paceline.model.operators import Operator

FORMAT = "paceline-profile"
VERSION = 1
DEVICE_KINDS = ("cuda", "cpu")
PARTS = ("gemm", "attention", "memory")

#: Largest size of a profile in bytes; a profile of all presets in all splits is far smaller.
_MAX_FILE_BYTES = 64 << 20
#: Memory sizes of the same GPU by CUDA and by datasheets differ by less than this share.
_SAME_MEMORY = 0.15

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One measured operator.

    Attributes:
        operator: the measured operator; a batch of experts is measured as one expert.
        seconds: median of the repeats.
        spread: interquartile range of the repeats over their median.
        repeats: number of repeats.
    """

    operator: Operator
    seconds: float
    spread: float
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProfile:
    """Measurements of ``paceline profile`` on one device.

    Attributes:
        device: name of the GPU, or of the processor.
        device_kind: "cuda" or "cpu".
        memory_bytes: size of its memory.
        processors: streaming multiprocessors of a GPU, threads used of a CPU.
        torch, cuda, driver: versions; "" = none.
        date: of the measurement, ISO 8601.
        precision: of the matrix products.
        launch_s: host seconds per kernel, of a step through autograd.
        peak_flops: FLOP/s of the fastest product.
        memory_bandwidth: byte/s of a large copy, counting bytes read and bytes written.
        shapes: the requested shapes: hidden, tp, micro_batch, seq_len, models.
        timings: the measured operators.
        left_out: operators that could not be measured, with reasons.
        path: the file it was read from; "" = none.
    """

    device: str
    device_kind: str
    memory_bytes: float
    processors: int
    torch: str
    cuda: str
    driver: str
    date: str
    precision: str
    launch_s: float
    peak_flops: float
    memory_bandwidth: float
    shapes: Mapping[str, tuple[Any, ...]] = field(hash=False)
    timings: tuple[Timing, ...]
    left_out: tuple[str, ...] = ()
    path: str = ""

    def mismatches(self, cluster: Cluster) -> list[str]:
        """Reasons why the profile may not apply to ``cluster`` or to the installed torch."""
        reasons = []
        if not _same_device(self, cluster.gpu):
            reasons.append(
                f"the profile{self._where} was taken on {self.device} "
                f"({self.memory_bytes / 2**30:.0f} GiB), not on the cluster's "
                f"{cluster.gpu.name} ({cluster.gpu.memory_bytes / 2**30:.0f} GiB)"
            )
        installed = _installed_torch()
        if installed and _release(installed) != _release(self.torch):
            reasons.append(
                f"the profile{self._where} was taken with torch {self.torch}, but {installed} is "
                "installed here; profile again if the job runs the latter"
            )
        return reasons

    @property
    def _where(self) -> str:
        return f" {self.path}" if self.path else ""

    def to_mapping(self) -> dict[str, Any]:
        """The profile in the form of its file."""
        fields = {k: v for k, v in asdict(self).items() if k not in ("timings", "path")}
        mapping: dict[str, Any] = {"format": FORMAT, "version": VERSION, **fields}
        mapping["timings"] = [
            {
                **{k: v for k, v in timing.operator._asdict().items() if v != _DEFAULTS.get(k)},
                "seconds": timing.seconds,
                "spread": round(timing.spread, 4),
                "repeats": timing.repeats,
            }
            for timing in self.timings
        ]
        return mapping


_DEFAULTS = Operator._field_defaults


# The file.


def save_profile(profile: OperatorProfile, path: Path, *, force: bool = False) -> None:
    """Write a profile atomically.

    Raises:
        OutputError: the file exists and ``force`` is not given, or it cannot be written.
    """
    mapping = profile.to_mapping()
    timings = mapping.pop("timings")
    head = json.dumps(mapping, indent=1)[:-2]
    rows = ",\n  ".join(json.dumps(row) for row in timings)  # one operator a line
    content = f'{head},\n "timings": [\n  {rows}\n ]\n}}\n'.encode()
    write_files({path: lambda file: _write(file, content)}, force=force)


def _write(file: Any, content: bytes) -> None:
    file.write(content)


def load_profile(path: str | Path) -> OperatorProfile:
    """Read what ``paceline profile`` wrote.

    Raises:
        ModelError: the file cannot be read, is not a profile, or a field is missing or wrong.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ModelError(f"{path}: too large for a profile; make one with `paceline profile`")
        mapping = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deep
        reason = str(error).partition("\n")[0][:120]
        raise ModelError(
            f"{path}: no JSON ({reason}); is it cut off? make it anew with `paceline profile`"
        ) from None
    try:
        return _from_mapping(mapping, str(path))
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _from_mapping(mapping: object, path: str) -> OperatorProfile:
    if not isinstance(mapping, dict) or mapping.get("format") != FORMAT:
        raise ModelError("this is no operator profile; make one with `paceline profile`")
    if mapping.get("version") != VERSION:
        raise ModelError(
            f"its version is {reprlib.repr(mapping.get('version'))} and this Paceline reads "
            f"{VERSION}; make it anew with `paceline profile`"
        )
    get = _Fields(mapping, "")
    rows = get.take("timings", list)
    if not rows:
        raise ModelError("timings is empty: nothing was measured; make it anew")
    return OperatorProfile(
        device=get.text("device"),
        device_kind=get.word("device_kind", DEVICE_KINDS),
        memory_bytes=get.number("memory_bytes"),
        processors=get.whole("processors", least=1),
        torch=get.text("torch"),
        cuda=get.take("cuda", str),
        driver=get.take("driver", str),
        date=get.text("date"),
        precision=get.word("precision", PRECISIONS),
        launch_s=get.number("launch_s", zero=True),
        peak_flops=get.number("peak_flops"),
        memory_bandwidth=get.number("memory_bandwidth"),
        shapes={
            str(name): tuple(values) if isinstance(values, list) else (values,)
            for name, values in get.take("shapes", dict).items()
        },
        timings=tuple(_timing(row, i) for i, row in enumerate(rows)),
        left_out=tuple(str(entry) for entry in get.take("left_out", list)),
        path=path,
    )


def _timing(row: object, i: int) -> Timing:
    where = f"timings[{i}]"
    if not isinstance(row, dict):
        raise ModelError(f"{where} must be a mapping, not {reprlib.repr(row)}")
    get = _Fields(_DEFAULTS | row, f"{where}.")
    part = get.word("part", PARTS)
    operator = Operator(
        name=get.text("name"),
        part=part,
        flops=get.number("flops", zero=part == "memory"),
        bytes=get.number("bytes"),
        m=get.whole("m"),
        n=get.whole("n"),
        k=get.whole("k"),
        batch=get.whole("batch", least=1),
        kernels=get.whole("kernels", least=1),
        precision=get.word("precision", PRECISIONS),
    )
    if part == "gemm" and not min(operator.m, operator.n, operator.k):
        raise ModelError(f"{where} is a product without m, n and k")
    return Timing(
        operator=operator,
        seconds=get.number("seconds"),
        spread=get.number("spread", zero=True),
        repeats=get.whole("repeats", least=1),
    )


_KINDS: dict[type[Any], str] = {list: "a list", dict: "a mapping", str: "a text"}


class _Fields:
    """Typed access to a mapping; errors name the field and its fault."""

    def __init__(self, mapping: Mapping[str, Any], prefix: str) -> None:
        self.mapping, self.prefix = mapping, prefix

    def take(self, name: str, kind: type[_T]) -> _T:
        if name not in self.mapping:
            raise ModelError(
                f"{self.prefix}{name} is missing; make it anew with `paceline profile`"
            )
        value = self.mapping[name]
        if not isinstance(value, kind):
            raise self._wrong(name, _KINDS[kind])
        return value

    def text(self, name: str) -> str:
        value = self.take(name, str)
        if not value.strip():
            raise self._wrong(name, "a text")
        return value

    def word(self, name: str, words: tuple[str, ...]) -> str:
        value = self.take(name, str)
        if value not in words:
            raise self._wrong(name, f"one of {', '.join(words)}")
        return value

    def number(self, name: str, *, zero: bool = False) -> float:
        value = self.take(name, object)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not 0 <= value < 1e30 or (value == 0 and not zero):  # type: ignore[operator]  # a number, if good
            raise self._wrong(name, f"a number {'>= 0' if zero else '> 0'}")
        return float(value)  # type: ignore[arg-type]  # a number, as checked

    def whole(self, name: str, least: int = 0) -> int:
        value = self.take(name, object)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 50:
            raise self._wrong(name, f"a whole number >= {least}")
        return value

    def _wrong(self, name: str, expected: str) -> ModelError:
        text = reprlib.repr(self.mapping[name])
        return ModelError(f"{self.prefix}{name} must be {expected}, not {text}")


# The device of the profile.


def _same_device(profile: OperatorProfile, gpu: Gpu) -> bool:
    """Whether names and memory sizes agree: "NVIDIA A100-SXM4-80GB" is "A100 SXM4 80GB"."""
    if profile.device == gpu.name:
        return True
    if profile.device_kind == "cpu":
        return False
    ours, theirs = _words(profile.device), _words(gpu.name)
    if _models(ours) != _models(theirs) or ours & {"PCIE"} != theirs & {"PCIE"}:
        return False
    return abs(profile.memory_bytes / gpu.memory_bytes - 1) <= _SAME_MEMORY


def _words(name: str) -> set[str]:
    return set(re.findall(r"[A-Z0-9]+", name.upper()))


def _models(words: set[str]) -> set[str]:
    """The words that are product numbers (A100, GB200, MI300X); all words if there are none."""
    return {word for word in words if re.fullmatch(r"[A-Z]{1,2}\d{2,4}[A-Z]?", word)} or words


def _installed_torch() -> str:
    """Version of the installed torch, without importing it; "" = none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _release(version: str) -> str:
    return version.partition("+")[0]
