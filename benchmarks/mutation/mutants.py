"""The mutants of a file: which places are changed, and into what.

cosmic-ray's operators do the changes. Chosen are those whose mutants are quiet: ``<`` into ``<=``,
``+`` into ``-``, ``and`` into ``or``. Left out are those that raise at once, such as ``+`` into
``<<``, which any test kills. Numbers from 10 up and floats are doubled or halved, since 1.05
in place of 0.05 is no hard test of a threshold.

Also left out are places that no test should notice: annotations, decorators (caches, frozen
dataclasses) and how dataclasses compare, ``assert``, the ``strict`` of ``zip``, texts for people
(f-strings), seeds, numbers that only keep a divisor from being 0, and lines that decide how fast an
answer comes, not which. So are three files of ``detect`` whose tests start processes and measure
them, alone on the machine.
"""

from __future__ import annotations

import ast
import difflib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
import parso
from cosmic_ray.ast import ast_nodes, get_ast, is_number
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

#: Packages by name, as folders or files of src/paceline.
PACKAGES = ("model", "simulate", "graph", "whatif", "diagnose", "detect")

#: Files whose tests are marked ``alone``.
MEASURED_ALONE = ("validate.py", "launch.py", "join.py")

#: What decides when to compile, and how much to hold at once; a line with one of these, or a whole
#: function of these names.
SPEED = re.compile(
    r"\b(COLD_ABOVE_S|WARM_ABOVE_S|COMPILE_ABOVE_OPS\w*|_WORTH_COMPILING|_SEGMENT_S|_\w*OP_S"
    r"|_(INTERPRETED|COMPILED|ENDS)_BYTES|rows_bytes|_CHUNK_VALUES|_MAX_CELLS|_MAX_LANES|1 << 22)\b"
)
SPEED_FUNCTIONS = ("_worth_compiling", "_cores", "block_lanes")

#: Smaller numbers keep a divisor or a logarithm from 0.
GUARD = 1e-8

#: From this size on, one more or one less is no change of meaning.
LARGE = 10


class ScaleNumber(Operator):  # type: ignore[misc]
    """Doubles or halves a float or a large integer; adds or takes 1 from a small integer."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        if is_number(node) and not 0 < ast.literal_eval(node.value) < GUARD:
            yield (node.start_pos, node.end_pos)
            yield (node.start_pos, node.end_pos)

    def mutate(self, node: Any, index: int) -> Any:
        value = ast.literal_eval(node.value)
        changes: tuple[float, float]
        if isinstance(value, float) and value:
            changes = (value * 2, value / 2)
        elif value >= LARGE:
            changes = (value * 2, value // 2)
        else:
            changes = (value + 1, value - 1)
        changed = changes[index]
        return parso.python.tree.Number(repr(changed), node.start_pos, prefix=node.prefix)

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


#: What a comparison, an operator and a sign become: names of cosmic-ray's operators.
_PAIRS = {
    "ReplaceComparisonOperator": (
        *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is"),
        *("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt"),
    ),
    "ReplaceBinaryOperator": (
        *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul"),
        *("BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitAnd", "LShift_RShift", "RShift_LShift"),
    ),
    "ReplaceUnaryOperator": ("Delete_USub", "Delete_Invert", "Delete_Not"),
}

_SINGLE = (
    *("AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
    "ExceptionReplacer",
)


def _operators() -> dict[str, Operator]:
    names = [f"{family}_{pair}" for family, pairs in _PAIRS.items() for pair in pairs]
    operators = {
        name: cosmic_ray.plugins.get_operator(f"core/{name}")() for name in [*names, *_SINGLE]
    }
    return {**operators, "ScaleNumber": ScaleNumber()}


@dataclass(frozen=True)
class Mutant:
    """A change of the lines from ``line`` (from 1) on: ``old`` becomes ``new``."""

    path: str  # from the root of the repository
    line: int
    operator: str
    old: tuple[str, ...]
    new: tuple[str, ...]

    def applied(self, source: str) -> str:
        """The mutated source; raises ``LookupError`` if the old lines are not in it."""
        lines, start = source.split("\n"), self.moved(source).line - 1
        return "\n".join([*lines[:start], *self.new, *lines[start + len(self.old) :]])

    def moved(self, source: str) -> Mutant:
        """The mutant where its old lines are now; raises ``LookupError`` if they are gone."""
        lines, size = source.split("\n"), len(self.old)
        starts = [
            start for start in range(len(lines)) if tuple(lines[start : start + size]) == self.old
        ]
        if not starts:
            raise LookupError(f"{self.path}:{self.line} has changed since: {self.old}")
        start = min(starts, key=lambda start: abs(start + 1 - self.line))
        return replace(self, line=start + 1)


@dataclass(frozen=True)
class _Place:
    """One operator's changes of one span, told from each other by their occurrence."""

    path: str
    operator: str
    occurrences: tuple[int, ...]


def files(root: Path, package: str) -> list[Path]:
    place = root / "src/paceline" / package
    if not place.is_dir():
        return [place.with_suffix(".py")]
    return sorted(path for path in place.glob("*.py") if path.name not in MEASURED_ALONE)


def sample(root: Path, package: str, size: int, seed: int) -> list[Mutant]:
    """One mutant of each of ``size`` places of a package, drawn without replacement."""
    draw = random.Random(f"{package} {seed}")
    places = [place for path in files(root, package) for place in _places(root, path)]
    draw.shuffle(places)
    mutants = (_mutant(root, place, draw.choice(place.occurrences)) for place in places)
    return list(islice((mutant for mutant in mutants if mutant), size))


def _places(root: Path, path: Path) -> Iterator[_Place]:
    source = path.read_text(encoding="utf-8")
    quiet = [*_unnoticed(ast.parse(source)), *_of_speed(source)]
    nodes = list(ast_nodes(get_ast(source)))
    for name, operator in _operators().items():
        spans: dict[tuple[tuple[int, int], tuple[int, int]], list[int]] = {}
        for node in nodes:
            for span in operator.mutation_positions(node):
                occurrence = sum(map(len, spans.values()))
                spans.setdefault(span, []).append(occurrence)
        for span, occurrences in spans.items():
            if not any(start <= span[0] and span[1] <= end for start, end in quiet):
                yield _Place(str(path.relative_to(root)), name, tuple(occurrences))


def _unnoticed(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Spans of code that no test should notice."""
    nodes: list[ast.AST | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) if name in SPEED_FUNCTIONS:
                nodes.append(node)
            case ast.FunctionDef():
                nodes += [node.returns, *node.decorator_list]
            case ast.ClassDef():
                nodes += node.decorator_list
            case ast.arg() | ast.AnnAssign():
                nodes.append(node.annotation)
            case ast.keyword(arg="strict" | "repr" | "compare" | "hash"):
                nodes.append(node)
            case ast.Assert() | ast.JoinedStr():
                nodes.append(node)
            case ast.Call(func=ast.Name(id="cast")):
                nodes.append(node.args[0])
            case ast.Call(func=ast.Attribute(attr="default_rng" | "manual_seed")):
                nodes += node.args
    return [_span(node) for node in nodes if node is not None]


def _of_speed(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for number, line in enumerate(source.split("\n"), start=1):
        if SPEED.search(line):
            yield (number, 0), (number, len(line))


def _span(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _mutant(root: Path, place: _Place, occurrence: int) -> Mutant | None:
    """The mutant; None where it is no Python (``while not x := ...``), as that tests nothing."""
    source = (root / place.path).read_text(encoding="utf-8")
    mutated = mutate_code(source, _operators()[place.operator], occurrence)
    try:
        ast.parse(mutated)
    except SyntaxError:
        return None
    old, new = source.split("\n"), mutated.split("\n")
    changes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    spans = [change[1:] for change in changes if change[0] != "equal"]
    first, last = spans[0], spans[-1]
    return Mutant(
        place.path,
        first[0] + 1,
        place.operator,
        tuple(old[first[0] : last[1]]),
        tuple(new[first[2] : last[3]]),
    )
