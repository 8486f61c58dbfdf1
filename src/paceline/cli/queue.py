"""``paceline queue``: replay a cluster's queue under other policies or better plans."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from paceline.cli.case_input import add_json
from paceline.cli.commands import HELP
from paceline.cli.progress import ProgressBar
from paceline.cli.trace_input import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rich.text import Text

    from paceline.scheduling.jobs import JobList, Throughputs
    from paceline.scheduling.read_jobs import QueueFile
    from paceline.scheduling.replay import SlowJobs, SlowNodes
    from paceline.scheduling.study import Choices, Study
    from paceline.scheduling.summary import Labelled
    from paceline.scheduling.throughputs import Tables

EXAMPLES = """\
examples:
  paceline queue jobs.csv --gpus 1024 --compare fifo,backfill,srtf,tiresias -o out/
  paceline queue jobs.csv --gpus 1024 --gpu a100-80g --policy elasticflow --plans fixed,best
  paceline queue jobs.csv --gpus 64 --policy elasticflow --throughputs measured.csv
  sacct -P -X -S now-60days -o JobID,Submit,Start,End,State,AllocTRES | paceline queue - --gpus 512
  paceline queue --study vtrain

jobs.csv: job_id, submission_time [s, or a date], then num_gpu and duration [s] (rigid), or model,
global_batch and iterations (elastic); and, where known, deadline, min_gpu, max_gpu, user, queue.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "queue",
        help=HELP["queue"],
        description="Replay the jobs of a cluster under scheduling policies. Compare deadlines "
        "met, completion and waiting times, makespan and GPU-hours, and list the jobs that lose.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "jobs", nargs="?", metavar="JOBS", type=_log_name, help="the log of the queue; - = stdin"
    )
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument("--gpus", metavar="N", type=int, help="GPUs of the cluster")
    cluster.add_argument("--node-gpus", metavar="N", type=int, help="GPUs of a node (default: 8)")
    cluster.add_argument(
        "--gpu", metavar="NAME", help="a preset (`paceline presets`), for jobs that name a model"
    )
    cluster.add_argument("--cluster", metavar="FILE", help="a cluster file, instead of --gpu")
    cluster.add_argument(
        "--slow",
        metavar="SHARE,FACTOR|FILE",
        type=_slow,
        help="slow nodes: 0.02,1.3 = 2%% of them at 1.3 x; or a CSV with slowdowns of jobs",
    )
    policy = parser.add_argument_group("policies and plans")
    policy.add_argument(
        "--policy", metavar="NAME", help="fifo, backfill, srtf, edf, tiresias or elasticflow"
    )
    policy.add_argument("--compare", metavar="NAME,...", type=_list, help="several policies")
    policy.add_argument(
        "--plans", metavar="best,fixed", type=_list, help="plans of elastic jobs (default: best)"
    )
    policy.add_argument(
        "--fixed",
        metavar="TP,PP",
        type=_degrees,
        help="degrees of the fixed plans (default: those of the fastest plan on the fewest GPUs)",
    )
    policy.add_argument(
        "--by",
        metavar="COLUMN",
        help="replay the jobs of each value separately, such as of each window, and give "
        "intervals over them",
    )
    policy.add_argument(
        "--throughputs",
        metavar="FILE",
        type=file_name,
        help="measured throughputs: class or model, gpus, iterations_per_s",
    )
    rules = parser.add_argument_group("rules")
    rules.add_argument(
        "--rescale-s",
        metavar="S",
        type=float,
        help="seconds that a job loses when its GPUs change (default: 0)",
    )
    rules.add_argument(
        "--slot-s", metavar="S", type=float, help="decide every S seconds (default: at every event)"
    )
    rules.add_argument(
        "--marginal",
        choices=("saved", "added"),
        help="elasticflow: free GPUs go to the job where they save most GPU-time (default), or "
        "where they add most throughput, as in its artifact",
    )
    rules.add_argument(
        "--order",
        choices=("arrival", "shortest"),
        help="elasticflow: which job without GPUs is served first (default: arrival)",
    )
    rules.add_argument(
        "--levels",
        choices=("powers", "all"),
        default="powers",
        help="elasticflow: numbers of GPUs, powers of two (default) or all of --throughputs",
    )
    rules.add_argument("--seed", metavar="N", type=int, help="seed of random draws")
    parser.add_argument(
        "--from", dest="form", choices=("csv", "sacct"), help="the log's form (default: by content)"
    )
    study = parser.add_argument_group("vTrain's case study")
    study.add_argument("--study", choices=("vtrain",), help="run it instead of reading a log")
    study.add_argument(
        "--windows", metavar="FILE", type=file_name, help="arrivals: window, submission_time"
    )
    study.add_argument("--software", choices=("vtrain", "today"), help="(default: vtrain)")
    study.add_argument("--span-h", metavar="H", type=float, help="hours of arrivals (default: 400)")
    parser.add_argument(
        "-o",
        "--out",
        metavar="DIR",
        type=file_name,
        help="write jobs.parquet, timeline.parquet, result.json and report.html into this folder",
    )
    parser.add_argument("--force", action="store_true", help="overwrite files in --out")
    add_json(parser, "result.json")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay, print, write."""
    from paceline.errors import QueueError

    if args.study is not None:
        return _study(args)
    if args.jobs is None:
        raise QueueError(
            "the jobs are missing: give a file, - for standard input, or --study vtrain"
        )
    for name in ("windows", "software", "span_h"):
        if getattr(args, name) is not None:
            raise QueueError(f"--{name.replace('_', '-')} belongs to --study")
    if args.gpus is None:
        raise QueueError("the cluster's GPUs are missing; give --gpus 1024")
    if args.policy and args.compare:
        raise QueueError("give either --policy or --compare")
    return _replay(args)


def _replay(args: argparse.Namespace) -> int:
    from paceline.report import queue as report
    from paceline.scheduling.read_jobs import read_jobs, read_throughputs

    if args.out is not None:
        report.check_folder(args.out, force=args.force)
    measured = read_throughputs(args.throughputs) if args.throughputs else None
    log = read_jobs(args.jobs, sacct=args.form == "sacct", throughputs=measured)
    tables = _tables(args, log) if log.models else None
    table = {"best": measured} if measured is not None else {}
    if tables is not None:
        table = {"best": tables.best, "fixed": tables.fixed}
    choices, notes = _choices(args, tables)
    if args.by is not None:
        return _groups(args, log, table, choices, notes)
    entries = _entries(args, log.jobs, table)
    note = None
    if args.out is not None:
        note = report.write_folder(
            entries, choices, notes, log.warnings, args.out, force=args.force
        )
    if args.json:
        return _print_json(report.to_mapping(entries, choices, log.warnings))
    _print(lambda width: report.lines(entries, notes, log.warnings, width))
    if note is not None:
        print(note, file=sys.stderr)
    return 0


def _groups(
    args: argparse.Namespace,
    log: QueueFile,
    table: Mapping[str, Throughputs],
    choices: dict[str, Any],
    notes: list[str],
) -> int:
    """The jobs of each group, replayed separately."""
    from paceline.errors import QueueError
    from paceline.report import queue_groups as report

    if args.out is not None:
        raise QueueError("--by prints intervals over groups; it writes no --out")
    groups = {
        value: _entries(args, jobs, table) for value, jobs in log.jobs.groups(args.by).items()
    }
    if args.json:
        return _print_json(report.to_mapping(args.by, groups, choices, log.warnings))
    _print(lambda width: report.lines(args.by, groups, [*notes, *log.warnings], width))
    return 0


def _print_json(mapping: dict[str, Any]) -> int:
    from paceline.report.result_json import lines_of_json

    sys.stdout.write(lines_of_json(mapping))
    return 0


def _print(lines: Callable[[int], list[Text]]) -> None:
    from paceline.report.terminal import print_lines, standard_output

    console = standard_output()
    print_lines(lines(console.width), console)


def _tables(args: argparse.Namespace, log: QueueFile) -> Tables:
    """Throughputs of the models that the jobs name, by the search for plans."""
    from paceline.errors import QueueError
    from paceline.model.job_yaml import job_from_options
    from paceline.scheduling.throughputs import (
        Workload,
        cache_folder,
        powers_of_two,
        throughput_tables,
    )

    if not args.gpu and not args.cluster:
        raise QueueError(
            "jobs name models; name their hardware: --gpu a100-80g, or give --throughputs"
        )
    jobs = {
        name: (job_from_options(model=model, gpu=args.gpu, cluster=args.cluster), batch)
        for name, (model, batch) in log.models.items()
    }
    workloads = [
        Workload(name=name, llm=job.llm, global_batch=batch, fixed=args.fixed)
        for name, (job, batch) in jobs.items()
    ]
    cluster = next(iter(jobs.values()))[0].cluster
    asked = {int(gpus) for gpus in log.jobs.gpus.tolist() if 0 < gpus <= args.gpus}
    counts = sorted({*powers_of_two(args.gpus), *asked})
    with ProgressBar("searching plans") as progress:
        return throughput_tables(
            workloads, cluster, counts, folder=cache_folder(), progress=progress
        )


def _entries(
    args: argparse.Namespace, jobs: JobList, table: Mapping[str, Throughputs]
) -> list[Labelled]:
    """A replay for each policy and kind of plans."""
    from paceline.errors import QueueError
    from paceline.scheduling.jobs import NO_THROUGHPUTS
    from paceline.scheduling.replay import replay_queue
    from paceline.scheduling.summary import Labelled

    plans = args.plans or ["best"]
    if args.plans and "fixed" not in table:
        raise QueueError("--plans needs jobs with a model, and no --throughputs")
    if not set(plans) <= {"best", "fixed"}:
        raise QueueError(f"--plans takes best and fixed, not {','.join(plans)}")
    entries = []
    with ProgressBar("replaying") as progress:
        for name in args.compare or [args.policy or "fifo"]:
            for plan in plans:
                replay = replay_queue(
                    jobs,
                    args.gpus,
                    _policy(args, name),
                    table.get(plan, NO_THROUGHPUTS),
                    node_gpus=args.node_gpus,
                    rescale_s=args.rescale_s or 0.0,
                    slot_s=args.slot_s or 0.0,
                    slow=_slowness(args.slow),
                    seed=args.seed or 0,
                    progress=progress,
                )
                entries.append(Labelled(f"{name}, {plan}" if len(plans) > 1 else name, replay))
    return entries


def _slowness(slow: SlowNodes | Path | None) -> SlowNodes | SlowJobs | None:
    from pathlib import Path

    from paceline.scheduling.read_jobs import read_slowdowns

    return read_slowdowns(slow) if isinstance(slow, Path) else slow


def _named(slow: SlowNodes | Path) -> str:
    from paceline.scheduling.replay import SlowNodes

    if isinstance(slow, SlowNodes):
        return f"{slow.share:.3g} of the nodes at {slow.factor:g} x"
    return f"slowdowns of {slow}"


def _policy(args: argparse.Namespace, name: str) -> Any:
    if name != "elasticflow":
        return name
    from paceline.scheduling.elasticflow import ElasticFlow

    return ElasticFlow(args.marginal or "saved", args.order or "arrival", args.levels)


def _choices(args: argparse.Namespace, tables: Tables | None) -> tuple[dict[str, Any], list[str]]:
    """The assumptions, for machines and for people."""
    rescale, slot = args.rescale_s or 0.0, args.slot_s or 0.0
    choices = {
        "rescale_s": rescale,
        "slot_s": slot,
        "marginal": args.marginal or "saved",
        "order": args.order or "arrival",
        "levels": args.levels,
        "slow": None if args.slow is None else _named(args.slow),
        "seed": args.seed or 0,
        "fixed_degrees": None
        if tables is None
        else {name: list(degrees) for name, degrees in tables.degrees.items()},
    }
    notes = [
        f"A change of its GPUs costs a job {rescale:g} s (--rescale-s); decisions are made "
        + (f"every {slot:g} s." if slot else "at every event.")
        + " The policies know how long jobs take in advance, which is possible only in a replay.",
    ]
    if args.slow is not None:
        notes.append(f"Slow: {_named(args.slow)}, drawn for each job; no policy knows of it.")
    return choices, notes


def _study(args: argparse.Namespace) -> int:
    from paceline.errors import QueueError
    from paceline.report import queue_study as report
    from paceline.scheduling.study import Choices, read_windows, run_study
    from paceline.scheduling.throughputs import cache_folder

    given = (
        *("jobs", "gpus", "gpu", "cluster", "policy", "compare", "plans", "fixed", "by"),
        *("throughputs", "slow"),
    )
    for name in given:
        if getattr(args, name) is not None:
            raise QueueError(f"{name} and --study contradict each other; the study sets it")
    options = {
        name: value
        for name in ("seed", "software", "span_h", "slot_s", "rescale_s", "marginal", "order")
        if (value := getattr(args, name)) is not None
    }
    choices: Choices = Choices(**options)
    windows = read_windows(args.windows or _windows())
    with ProgressBar("replaying") as progress:
        study: Study = run_study(windows, choices, folder=cache_folder(), progress=progress)
    if args.out is not None:
        print(report.write(study, args.out, force=args.force), file=sys.stderr)
    if args.json:
        return _print_json(report.to_mapping(study))
    _print(lambda width: report.lines(study, width))
    return 0


def _windows() -> Any:
    """The file of arrivals next to a checkout, if it exists."""
    import os
    from pathlib import Path

    from paceline.errors import QueueError

    shared = Path(os.environ.get("PACELINE_SHARED") or "../shared")
    path = shared / "data" / "cluster" / "itp_windows_128.csv"
    if not path.is_file():
        raise QueueError(
            "the study needs arrivals: --windows FILE with the columns window and submission_time, "
            "windows of 128 jobs (the paper's: github.com/microsoft/elasticflow-traces)"
        )
    return path


def _log_name(text: str) -> Path:
    from pathlib import Path

    return Path("-") if text == "-" else file_name(text)


def _list(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of different names")
    return names


def _degrees(text: str) -> tuple[int, int]:
    try:
        tp, pp = (int(part) for part in text.split(","))
    except ValueError:
        tp, pp = 0, 0
    if min(tp, pp) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no pair of degrees such as 8,2")
    return tp, pp


def _slow(text: str) -> SlowNodes | Path:
    from pathlib import Path

    from paceline.errors import QueueError
    from paceline.scheduling.replay import SlowNodes

    if Path(text).is_file():
        return Path(text)
    try:
        share, factor = (float(part) for part in text.split(","))
        return SlowNodes(share=share, factor=factor)
    except (ValueError, QueueError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no file, and no share (0 to 1) and factor (1 or more) such as 0.02,1.3"
        ) from None
