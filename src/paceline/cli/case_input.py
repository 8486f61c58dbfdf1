"""The arguments of a diagnosis, shared by the commands that make one."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.cli.numbers import parse_numbers
from paceline.cli.progress import ProgressBar
from paceline.cli.trace_input import TraceInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paceline.graph import Measured
    from paceline.remedies import Case
    from paceline.whatif import WhatIf


class CaseInput(NamedTuple):
    """The parts of a diagnosis: a trace, and facts from other files.

    Attributes:
        trace: the trace.
        layers: transformer layers of each stage, or of each chunk; None = not known.
        seqlens: file of sequence lengths, or None.
        hosts: file of where ranks run, or None.
    """

    trace: TraceInput
    layers: tuple[int, ...] | None = None
    seqlens: Path | None = None
    hosts: Path | None = None

    @classmethod
    def of(cls, args: argparse.Namespace, steps: Sequence[int] | None = None) -> CaseInput:
        """Checked arguments of ``trace_input`` and of this module."""
        return cls(TraceInput.of(args, steps), args.layers, args.seqlens, args.hosts)

    def places(self, measured: Measured) -> dict[tuple[int, int], tuple[str, str]]:
        """(dp, pp) -> (host, gpu), from the file of hosts or, without one, from the trace."""
        from paceline.sources.hosts import hosts_of_workers, read_hosts

        places = measured.places if self.hosts is None else read_hosts(self.hosts)
        return hosts_of_workers(places, measured.rank)

    def case(self, options: Mapping[str, Any] | None = None) -> Case:
        """Read, analyse and diagnose; ``options`` are for remedies."""
        return self.analyzed(self.trace.measured(), options)

    def analyzed(self, measured: Measured, options: Mapping[str, Any] | None = None) -> Case:
        """Analyse and diagnose a trace that was read before."""
        from paceline.whatif import analyze

        with ProgressBar("simulating") as progress:
            result = analyze(measured, progress=progress)
        return self.diagnosed(measured, result, options)

    def diagnosed(
        self, measured: Measured, result: WhatIf, options: Mapping[str, Any] | None = None
    ) -> Case:
        """Diagnose a trace that was analysed before."""
        from paceline.diagnose import diagnose
        from paceline.remedies import Case

        _check_layers(self.layers, measured)
        places = self.places(measured)
        seqlens = None
        if self.seqlens is not None:
            from paceline.sources.seqlens import read_seqlens

            seqlens = read_seqlens(self.seqlens)
        diagnosis = diagnose(measured, result, places, seqlens)
        return Case(measured, result, diagnosis, self.layers, seqlens, options or {})


def _check_layers(layers: tuple[int, ...] | None, measured: Measured) -> None:
    from paceline.errors import RemedyError

    pp, vpp = measured.job.pp_size, measured.job.vpp_size
    if layers is not None and len(layers) not in (pp, pp * vpp):
        chunks = f" or {pp * vpp} (one per chunk)" if vpp > 1 else ""
        raise RemedyError(f"--layers gives {len(layers)} numbers; the job has {pp} stages{chunks}")


def add_json(parser: argparse.ArgumentParser, content: str = "JSON") -> None:
    """--json, also spelled --format json."""
    parser.add_argument("--json", action="store_true", help=f"print {content} instead of text")
    parser.add_argument(
        "--format",
        dest="json",
        type=_is_json,
        metavar="{text,json}",
        help="the same as a choice (default: text)",
    )


def _is_json(text: str) -> bool:
    if text not in ("text", "json"):
        raise argparse.ArgumentTypeError(f"must be text or json, not {text!r}")
    return text == "json"


def add_steps(parser: argparse._ActionsContainer) -> None:
    """--steps of the analysis."""
    parser.add_argument(
        "--steps",
        metavar="N-M,...",
        type=parse_numbers,
        help="analyse only these steps, by number (10-20,25)",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the input of a diagnosis other than the trace."""
    group = parser.add_argument_group("facts that the trace does not hold")
    group.add_argument(
        "--layers",
        metavar="N,N,...",
        type=parse_layers,
        help="transformer layers of each stage (9,9,9,9)",
    )
    group.add_argument(
        "--seqlens",
        metavar="FILE",
        type=Path,
        help="sequence lengths of every microbatch (parquet: step, dp_rank, mb_id, lengths)",
    )
    group.add_argument(
        "--hosts",
        metavar="FILE",
        type=Path,
        help="where ranks run (CSV: rank, host, gpu), so that findings name machines; a recording "
        "holds this already",
    )
    group.add_argument(
        "--gpu-hour-cost",
        metavar="MONEY",
        type=_price,
        help="price of a GPU-hour, for the waterfall",
    )


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} should be a number from 0 on, such as 2.5")
    return price


def parse_layers(text: str) -> tuple[int, ...]:
    """Layers of each stage, such as 9,9,9,9.

    Raises:
        argparse.ArgumentTypeError: they are no whole numbers.
    """
    try:
        layers = tuple(int(number) for number in text.split(","))
    except ValueError:
        layers = ()
    if not layers or min(layers) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} should be whole numbers, such as 9,9,9,9")
    return layers
