"""YAML mappings whose every complaint names the file, the line and the field."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.errors import PacelineError, QuantityError
from paceline.quantities import parse_quantity

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, Node

MAX_BYTES = 1 << 20  # of a file; a job has a few hundred
MAX_VALUES = 10_000  # in one plain value: aliases of aliases would fill the memory
MAX_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Section:
    """One mapping of a YAML file.

    Attributes:
        path: the file.
        name: where in it: "gpu.peak_flops"; "" for the whole file.
        line: of its first field, from 1.
        nodes: field -> its YAML node.
        error: what to raise for a bad field: the error of those that read the file.
    """

    path: Path
    name: str
    line: int
    nodes: dict[str, Node]
    error: type[PacelineError]

    def __contains__(self, field: str) -> bool:
        return field in self.nodes

    def fail(self, field: str, message: str) -> NoReturn:
        """Raise the file's error with the place of ``field`` ("" = the section itself)."""
        node = self.nodes.get(field)
        line = node.start_mark.line + 1 if node is not None else self.line
        place = ".".join(part for part in (self.name, field) if part)
        where = f"{self.path}, line {line}"
        raise self.error(f"{where}: {place}: {message}" if place else f"{where}: {message}")

    def blame(self, error: PacelineError) -> NoReturn:
        """Raise ``error`` again with the line of the first field here that it speaks of."""
        self.fail(next((field for field in self.nodes if field in error.fields), ""), str(error))

    def allow(self, fields: Iterable[str]) -> None:
        """Refuse any but these ``fields``, naming the nearest of them.

        Raises:
            PacelineError: there is one; of the section's class.
        """
        names = list(fields)
        for field in self.nodes:
            if field not in names:
                near = get_close_matches(field, names, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
                self.fail(field, f"unknown field; {hint}")

    def is_section(self, field: str) -> bool:
        """Whether the field is a mapping."""
        from yaml.nodes import MappingNode

        return isinstance(self.nodes.get(field), MappingNode)

    def section(self, field: str) -> Section:
        """The mapping under ``field``; an empty one where it is missing."""
        from yaml.nodes import MappingNode

        node = self.nodes.get(field)
        name = ".".join(part for part in (self.name, field) if part)
        if node is None:
            return Section(self.path, name, self.line, {}, self.error)
        if not isinstance(node, MappingNode):
            self.fail(field, f"must be a mapping (name: value), not {self._text_of(field)}")
        return _section(self.path, name, node, self.error)

    def plain(self, field: str) -> Any:
        """The value in plain Python; a text such as 300e9 (no float in YAML 1.1) is a number."""
        return _plain(self, field, self.nodes[field])

    def text(self, field: str) -> str:
        """A text that is not empty."""
        value = self.plain(field)
        if not isinstance(value, str) or not value.strip():
            self.fail(field, f"must be a text, not {self._text_of(field)}")
        return value

    def quantity(self, field: str, measure: str) -> float:
        """A number, with a unit of ``measure`` or in base units."""
        value = self.plain(field)
        try:
            return parse_quantity(value, measure)
        except QuantityError as error:
            self.fail(field, str(error))

    def whole(self, field: str, least: int = 1) -> int:
        """A whole number, ``least`` or more."""
        value = self.plain(field)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.fail(field, f"must be a whole number >= {least}, not {self._text_of(field)}")
        return value

    def _text_of(self, field: str) -> str:
        value = self.nodes[field].value
        if isinstance(value, str):
            return reprlib.repr(value)
        return "a mapping" if self.is_section(field) else "a list"


def read_marked(path: Path, error: type[PacelineError], *, may_be_empty: bool = False) -> Section:
    """The mapping that a YAML file holds; it and its sections raise ``error``.

    Raises:
        PacelineError: the file cannot be read, is no YAML, or holds no mapping; of class ``error``.
    """
    import yaml
    from yaml.nodes import MappingNode

    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as failure:
        reason = getattr(failure, "strerror", None) or "it is not a text file"
        raise error(f"{path} cannot be read: {reason}") from None
    if len(raw) > MAX_BYTES:
        raise error(f"{path} is too long for a description in YAML; is it another file?")
    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as failure:
        mark = getattr(failure, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(failure, "problem", None) or str(failure).splitlines()[0]
        raise error(f"{path}{line}: not YAML: {problem}") from None
    except RecursionError:
        raise error(f"{path}: not YAML that can be read: nested too deeply") from None
    if node is None and may_be_empty:
        return Section(path, "", 1, {}, error)
    if not isinstance(node, MappingNode):
        raise error(f"{path} holds no mapping of fields (name: value)")
    return _section(path, "", node, error)


def _section(path: Path, name: str, mapping: MappingNode, error: type[PacelineError]) -> Section:
    section = Section(path, name, mapping.start_mark.line + 1, {}, error)
    for key, value in mapping.value:
        field = str(key.value) if isinstance(key.value, str) else ""
        line = key.start_mark.line + 1
        if not field:
            raise error(f"{path}, line {line}: a field's name must be a plain word")
        if field in section.nodes:
            place = f"{name}.{field}" if name else field
            raise error(f"{path}, line {line}: {place}: given twice")
        section.nodes[field] = value
    return section


def _plain(section: Section, field: str, top: Node) -> Any:
    from yaml.nodes import MappingNode, ScalarNode, SequenceNode

    left = MAX_VALUES

    def convert(node: Node, depth: int) -> Any:
        nonlocal left
        left -= 1
        if depth > MAX_DEPTH or left < 0:
            section.fail(field, "too many or too deeply nested values")
        if isinstance(node, MappingNode):
            return {str(key.value): convert(value, depth + 1) for key, value in node.value}
        if isinstance(node, SequenceNode):
            return [convert(value, depth + 1) for value in node.value]
        assert isinstance(node, ScalarNode)
        return _scalar(section, field, node)

    return convert(top, 0)


#: 300e9, 3.1e9.
_POWER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+", re.ASCII)


def _scalar(section: Section, field: str, node: Any) -> Any:
    import yaml

    kind = node.tag.rpartition(":")[2]
    if kind == "str":
        # YAML 1.1 wants a point and a sign, 3.0e+11; people write 300e9. Quoted, it stays a text.
        if not node.style and _POWER.fullmatch(node.value):
            number = float(node.value)
            return number if math.isfinite(number) else node.value
        return node.value
    if kind not in ("int", "float", "bool", "null"):
        section.fail(field, f"must be a number or a text, not {node.value!r} ({kind})")
    try:
        return yaml.SafeLoader("").construct_object(node)
    except (ValueError, yaml.YAMLError):
        section.fail(field, f"cannot be read: {node.value[:40]!r}")
