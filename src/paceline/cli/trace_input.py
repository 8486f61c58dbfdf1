"""The arguments that name files, such as the trace, shared by the commands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.cli.progress import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.graph import Measured
    from paceline.trace import Trace


class TraceInput(NamedTuple):
    """A trace that arguments name, and how to read it.

    Attributes:
        path: its file or folder, or several parquet files.
        job: the file of its degrees of parallelism; None = as the trace says.
        steps: the steps to take, by number; None = all.
        ignore_kinds: kinds of operations to drop.
        keep_clocks: leave clock offsets between workers as they are.
        by_rules: take the rules of pipelines where passes are whole, though programs are recorded.
    """

    path: Path | Sequence[Path]
    job: Path | None = None
    steps: Sequence[int] | None = None
    ignore_kinds: tuple[str, ...] = ()
    keep_clocks: bool = False
    by_rules: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace, steps: Sequence[int] | None = None) -> TraceInput:
        """Checked arguments of ``add_arguments``."""
        return cls(args.trace, args.job, steps, args.ignore_kinds, args.keep_clocks)

    def load(self) -> Trace:
        """Read it."""
        from paceline.sources import load

        return load(self.path, self.job, steps=self.steps, ignore_kinds=self.ignore_kinds)

    def measured(self) -> Measured:
        """Its graph and durations.

        The trace is freed before the analysis, since it is as large as the result.
        """
        from paceline.graph import from_trace, measure

        if not self.by_rules:
            with ProgressBar("reading") as progress:
                return measure(
                    self.path,
                    self.job,
                    steps=self.steps,
                    ignore_kinds=self.ignore_kinds,
                    keep_clocks=self.keep_clocks,
                    progress=progress,
                )
        return from_trace(self.load(), keep_clocks=self.keep_clocks, by_rules=self.by_rules)


def file_name(text: str) -> Path:
    """The path that an argument names; ``Path("")`` would be the current folder.

    Raises:
        argparse.ArgumentTypeError: it is empty (an unset shell variable?), or ``-``.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    if text == "-":
        raise argparse.ArgumentTypeError(
            "standard input and output cannot be used here; give a name"
        )
    return Path(text)


def add_output(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Declare -o FILE, which is required, and --force."""
    parser.add_argument(
        "-o", "--output", required=True, type=file_name, metavar="FILE", help=help_text
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")


def add_arguments(
    parser: argparse.ArgumentParser,
    name: str = "trace",
    help_text: str = "the trace file (parquet)",
    *,
    optional: bool = False,
    several: bool = False,
) -> None:
    """TRACE (or another ``name``), --job, --ignore-kinds and --keep-clocks."""
    nargs = "+" if several else "?" if optional else None
    parser.add_argument(name, metavar=name.upper(), type=file_name, nargs=nargs, help=help_text)
    parser.add_argument(
        "--job",
        metavar="YAML",
        type=file_name,
        help="the job's degrees of parallelism (dp_size, pp_size, ...); default: the degrees "
        "stored in the trace, otherwise those that its rows show",
    )
    parser.add_argument(
        "--ignore-kinds",
        metavar="KIND,...",
        type=parse_kinds,
        default=(),
        help="drop operations of these kinds",
    )
    parser.add_argument(
        "--keep-clocks",
        action="store_true",
        help="do not correct clock offsets between workers",
    )


def parse_kinds(text: str) -> tuple[str, ...]:
    """Kinds of operations, such as a,b."""
    kinds = tuple(kind.strip() for kind in text.split(","))
    if not all(kinds):
        raise argparse.ArgumentTypeError(f"a kind is missing in {text!r}; write, for example, a,b")
    return kinds
