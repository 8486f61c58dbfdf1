"""``paceline detect``: when did a job become slow?"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from paceline.cli import detect_file, detect_stream, trace_input
from paceline.cli.commands import HELP

if TYPE_CHECKING:
    from typing import Any

    from paceline.detect.bocd import Bocd
    from paceline.detect.detector import Detector

EPILOG = """\
examples:
  paceline detect iterations.csv
  paceline detect train.log                 # Megatron-LM, torchtitan, NeMo, DeepSpeed, ...
  paceline detect train.log --pattern 'step (?P<step>\\d+) took (?P<duration_ms>[\\d.]+) ms'
  paceline detect iterations.csv --trace trace.parquet
  paceline detect runs/job-17
  paceline detect --collectives nccl.parquet
  paceline detect --collectives ras-1.json ras-2.json    # ncclras -f json: who has not arrived
  tail -f steps.jsonl | paceline detect - --ranks 8 --json

Logs are told by their content: Megatron-LM, Megatron-Bridge, NeMo, torchtitan, nanoGPT, llm.c,
DeepSpeed, LitGPT, MaxText, OLMo-core, Composer, nanotron, PaddleNLP, fairseq, ColossalAI, MMEngine,
Detectron2, timm, a tqdm bar (Hugging Face, Lightning, torchtune), MLPerf (:::MLLOG),
trainer_state.json, Weights & Biases' CSV, TensorBoard's event files, Prometheus' range JSON.
Of any other log the words are read; if they are unclear, the error proposes a --pattern.
Columns (CSV, parquet), or keys of a JSON line: step, duration_s (or start_s, in files), and rank
where there are several. wait_s, the part of duration_s in which the rank waits for others, names
the slow rank. The columns tokens, samples, batch, sequence_length, window and
flops give the work of a step: changes of step time that they explain are planned.
From standard input an event is printed as soon as it is certain. Events are merged over ranks.
A fail-slow has a line for its begin, for each new worst level, and for its end.
A call log has the columns rank, time_s, op, size, communicator and,
optionally, duration_s; the logs of PyTorch's flight recorder, of NCCL Inspector and of the plugin
of paceline nccl are read too, and NCCL Inspector's files for Prometheus.
To name the slow rank, give a trace or a call log with durations.
"""


#: Most ranks of a job: a detector keeps 7 KB of state for each.
MAX_RANKS = 1_000_000


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "detect",
        help=HELP["detect"],
        description="Find onsets and reliefs of fail-slows in step times, one step at a time.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "input",
        metavar="FILE",
        nargs="?",
        help="step times (CSV, .parquet, JSON lines), a trainer's log or metrics, a recorded run's "
        "folder, or - for JSON lines; not needed with --collectives",
    )
    parser.add_argument(
        "--pattern",
        metavar="REGEX",
        help="for other log formats: a regular expression for a step's line, with groups such as "
        "(?P<step>\\d+), (?P<duration_s>...) or duration_ms, steps_per_s, interval_s, elapsed_s, "
        "rate, time, and rank, tokens, batch",
    )
    parser.add_argument(
        "--collectives",
        metavar="LOG",
        nargs="+",
        help="logs of collective calls: finds their period, the step times (without FILE) and, if "
        "the log has durations, the slow rank",
    )
    parser.add_argument(
        "--trace",
        metavar="TRACE",
        type=trace_input.file_name,
        help="a trace of slow steps, numbered as in FILE: names the slow rank",
    )
    parser.add_argument(
        "--job", metavar="YAML", type=trace_input.file_name, help="the job of --trace"
    )
    parser.add_argument(
        "--telemetry",
        metavar="FILE",
        nargs="+",
        type=trace_input.file_name,
        help="telemetry of the GPUs (paceline telemetry), shown next to the slow ranks",
    )
    parser.add_argument(
        "--hosts",
        metavar="CSV",
        type=trace_input.file_name,
        help="with --telemetry: host and GPU of each rank (columns rank, host, gpu)",
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="with -: number of ranks (default 1)"
    )
    parser.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help="GPUs of the job, for GPU-hours lost (default: the number of ranks, if several)",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="X",
        help="share above the healthy level, beyond noise, that counts as slow (default 0.1)",
    )
    parser.add_argument(
        "--method",
        choices=("medians", "bocd"),
        default="medians",
        help="medians of several windows (default), or Bayesian change points with verification, "
        "as in the falcon paper",
    )
    parser.add_argument(
        "--like",
        metavar="RUNS",
        nargs="+",
        help="files or folders with step times of earlier runs of the same job: a change that "
        "most of them show at the same step is planned",
    )
    parser.add_argument(
        "--accept",
        metavar="STEP",
        type=int,
        action="append",
        default=[],
        help="accept the change that began within 10 steps of this one as planned: its level is "
        "healthy; may be repeated",
    )
    parser.add_argument(
        "--running",
        action="store_true",
        help="the job still runs: say from FILE's age whether its last step hangs. For a hang, "
        "name the ranks that did not arrive (--collectives), and show the stacks of the ranks on "
        "this host",
    )
    parser.add_argument(
        "--pid",
        metavar="N",
        type=int,
        nargs="+",
        help="with --running: the job's processes on this host; py-spy shows their stacks at a "
        "hang (default: processes that recorded FILE or have a rank in their environment)",
    )
    parser.add_argument(
        "--no-stacks", action="store_true", help="with --running: do not look at processes"
    )
    parser.add_argument(
        "--by-rank", action="store_true", help="do not merge the events of several ranks"
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="list each change of level of each group of ranks, not only the begin and the end of "
        "a fail-slow",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object per event")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Feed the detector, print its events."""
    from paceline.detect.bocd import Bocd
    from paceline.detect.detector import THRESHOLD, Detector
    from paceline.detect.limits import WARM_UP
    from paceline.errors import DetectError

    if args.gpus is not None and args.gpus < 1:
        raise DetectError(f"--gpus must be 1 or more, not {args.gpus}")
    if args.method == "bocd" and args.threshold is not None:
        raise DetectError("--threshold is for --method medians; bocd compares means by 10%")

    if args.method == "bocd" and (args.like or args.accept):
        raise DetectError("--like and --accept are for --method medians")
    like = _earlier_runs(args)

    def detector_of(ranks: int, warm_up: int = WARM_UP) -> Detector | Bocd:
        if args.method == "bocd":
            return Bocd(ranks)
        threshold = THRESHOLD if args.threshold is None else args.threshold
        durations = [seconds for _, seconds in like]
        return Detector(ranks, threshold=threshold, warm_up=warm_up, like=durations)

    if args.input == "-":
        if args.collectives or args.trace or args.telemetry:
            raise DetectError(
                "--collectives, --trace and --telemetry are for a file, not for a stream"
            )
        if args.pattern is not None or args.running:
            raise DetectError("--pattern and --running are for files, not for standard input")
        ranks = 1 if args.ranks is None else args.ranks
        if not 1 <= ranks <= MAX_RANKS:
            raise DetectError(f"--ranks must be from 1 to {MAX_RANKS:,}, not {ranks:,}")
        return detect_stream.run(args, detector_of)
    if args.pattern is not None and args.input is None:
        raise DetectError("--pattern is for FILE")
    if args.ranks is not None:
        raise DetectError("--ranks is for standard input; a file says which ranks it has")
    if args.job is not None and args.trace is None:
        raise DetectError("--job describes the job of --trace; give that too")
    if args.pid and not args.running:
        raise DetectError("--pid is for --running; give that too")
    if args.hosts is not None and not args.telemetry:
        raise DetectError("--hosts says where the GPUs of --telemetry run; give that too")
    return detect_file.run(args, detector_of, like)


def _earlier_runs(args: argparse.Namespace) -> list[Any]:
    """For each file of ``--like``: its first step, and [step] the median of the ranks."""
    from paceline.sources.step_logs.files import earlier_runs

    if not args.like:
        return []
    itself = None if args.input in (None, "-") else trace_input.file_name(args.input)
    runs = earlier_runs(map(trace_input.file_name, args.like), but=itself)
    if len(runs) < 3:
        few = (
            f"{len(runs)} earlier runs; with fewer than 3, a fault in one of them may count as "
            "planned"
        )
        print(f"note: {few}", file=sys.stderr)
    return runs
