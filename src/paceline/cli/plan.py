"""``paceline plan``: the best way to spread a model over some GPUs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from paceline.cli import network_predict
from paceline.cli.case_input import add_json
from paceline.cli.commands import HELP
from paceline.cli.engine_input import add_engine, mapper_of
from paceline.cli.memory_options import FRAMEWORKS, add_memory, memory_rules
from paceline.cli.numbers import parse_numbers
from paceline.cli.packing_options import NAMES as PACKING
from paceline.cli.packing_options import add_packing, packing_of
from paceline.cli.progress import ProgressBar
from paceline.cli.trace_input import file_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.model.compute import ComputeCost
    from paceline.model.job_yaml import PlannedJob
    from paceline.plan.explain import Explanation
    from paceline.plan.search import SearchResult

EXAMPLES = """\
examples:
  paceline plan --model gpt3-175b --gpu a100-80g --gpus 1024 --global-batch 1536 --tokens 300B
  paceline plan job.yaml --gpus 2000-3400 --objective cost --top 20 -o out/
  paceline plan job.yaml --max-days 30 --objective gpus
  paceline plan --model llama3-8b --gpu h100 --gpus 64 --global-batch 256 --launch torchtitan

job.yaml: model, cluster, gpus, plan, training, as for `paceline predict`. Degrees, micro batch,
recomputation and ZeRO of its plan are searched; the rest (precision, flash, schedule, overlaps,
global batch) holds for all plans.
"""

#: Fields of a plan that a search keeps; it searches the others.
PLAN_FIELDS = (
    *("precision", "flash", "kernels", "schedule", "overlap_dp", "overlap_tp", "overlap_pp"),
    *("overlap_factor", "grad_bytes", "bucket_bytes"),
    *("adapter_rank", "fused_experts", "offload_layers"),
)

_PRECISIONS = ("fp32", "fp16", "bf16", "fp8")

#: Whole-numbered limits: option, the bounded quantity.
LIMITS = (
    ("--max-tp", "tensor-parallel ranks (default: the GPUs of a node)"),
    ("--max-pp", "stages (default: the layers)"),
    ("--max-dp", "replicas (default: any)"),
    ("--max-cp", "context-parallel ranks (default: one per 4,096 tokens of a sample)"),
    ("--max-ep", "expert-parallel ranks (default: the experts)"),
    ("--max-vpp", "chunks per stage (default: 8)"),
)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "plan",
        help=HELP["plan"],
        description="Evaluate step time, memory and cost of every legal plan for a number of GPUs "
        "(or a range). Rank the plans that fit, and say why the others were ruled out.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "job_yaml", nargs="?", metavar="YAML", type=file_name, help="the job (or use the options)"
    )
    job = parser.add_argument_group("the job")
    job.add_argument(
        "--model", metavar="NAME|FILE", help="a preset (`paceline presets`), or a config.json"
    )
    job.add_argument(
        "--gpu", metavar="NAME", help="a preset (`paceline presets`): a100-80g, h100, ..."
    )
    job.add_argument("--cluster", metavar="FILE", help="a cluster file, instead of --gpu")
    job.add_argument(
        "--profile", metavar="FILE", type=file_name, help="operator times of `paceline profile`"
    )
    job.add_argument("--gpus", metavar="N-M,...", type=parse_numbers, help="numbers of GPUs to try")
    job.add_argument("--global-batch", metavar="N", type=int, help="samples of one step")
    job.add_argument("--seq-len", metavar="N", type=int, help="tokens of a sample")
    job.add_argument(
        "--images",
        metavar="N",
        type=int,
        help="images of a sample (Llama 4: tiles): counts the vision tower of a config.json",
    )
    add_packing(job)
    job.add_argument("--tokens", metavar="N", type=tokens, help="tokens to train on: 300B")
    job.add_argument("--price", metavar="$", type=float, help="dollars per GPU and hour")
    add_space(parser, more_precisions=("tf32", "amp"))
    add_memory(parser)
    add_engine(parser.add_argument_group("who searches"))
    wish = parser.add_argument_group("objective and limits")
    wish.add_argument(
        "--objective",
        choices=("time", "cost", "gpus"),
        default="time",
        help="rank by step time (default), GPU-time, or number of GPUs",
    )
    wish.add_argument("--max-days", metavar="D", type=float, help="longest training, in days")
    wish.add_argument(
        "--budget", metavar="$", type=float, help="largest price of the training, in dollars"
    )
    wish.add_argument("--top", metavar="N", type=int, default=10, help="plans to show (default 10)")
    wish.add_argument(
        "--launch",
        choices=FRAMEWORKS,
        help="write the launch command or configuration of the best plan (into --out, otherwise "
        "to the screen); only plans that this framework can run are tried",
    )
    wish.add_argument(
        "--explain",
        nargs=2,
        metavar=("A", "B"),
        type=int,
        help="compare the plans of ranks A and B, term by term",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="DIR",
        type=file_name,
        help="write plans.parquet (all that fit), result.json and report.html into this folder",
    )
    parser.add_argument(
        "--serve",
        nargs="?",
        type=int,
        const=0,
        metavar="PORT",
        help="a page on this machine with sliders for GPUs, sequence, batch and price",
    )
    parser.add_argument("--force", action="store_true", help="overwrite files in --out")
    network_predict.add_plan(parser, tokens)
    add_json(parser, "result.json")
    parser.set_defaults(run=run)


def add_space(parser: argparse.ArgumentParser, more_precisions: Sequence[str] = ()) -> None:
    """The plans to try, for all commands that search."""
    space = parser.add_argument_group("plans to try")
    for option, text in LIMITS:
        space.add_argument(option, metavar="N", type=int, help=text)
    space.add_argument(
        "--micro-batch", metavar="N,...", type=parse_numbers, help="(default: 1,2,4,8)"
    )
    space.add_argument(
        "--recompute", metavar="NAME,...", type=_names, help="(default: none,selective,full)"
    )
    space.add_argument("--zero", metavar="N,...", type=parse_numbers, help="(default: 0-3)")
    space.add_argument(
        "--shards",
        metavar="N,...",
        type=parse_numbers,
        help="with zero 3, ranks that share a copy of the parameters (HSDP), 0 = all (default: 0; "
        "with --launch torchtitan or accelerate 0,8,16,32)",
    )
    space.add_argument("--sequence-parallel", choices=("yes", "no", "both"), help="(default: both)")
    space.add_argument(
        "--even",
        action="store_true",
        help="only plans with the same number of layers on every stage",
    )
    space.add_argument("--precision", choices=(*_PRECISIONS, *more_precisions), help="of all plans")
    space.add_argument("--no-flash", action="store_true", help="attention is not fused")
    add_adapter_rank(space)
    add_kernels(space)
    space.add_argument(
        "--schedule",
        choices=("1f1b", "gpipe", "zb-h1", "zbv", "dualpipev", "dualpipe"),
        help="of all plans; zb-h1, zbv, dualpipev and dualpipe split the backward (default: 1f1b, "
        "interleaved where vpp > 1)",
    )
    add_overlap_factor(space)


def add_adapter_rank(group: argparse._ActionsContainer) -> None:
    """--adapter-rank, of all commands that predict."""
    group.add_argument(
        "--adapter-rank",
        "--lora",
        metavar="R",
        type=int,
        help="LoRA adapters of this rank on the attention's products; all other weights are frozen",
    )


def add_kernels(group: argparse._ActionsContainer) -> None:
    """--kernels, of all commands that predict."""
    group.add_argument(
        "--kernels",
        choices=("auto", "fused", "compiled", "eager"),
        help="fused (Transformer Engine), compiled (torch.compile) or eager PyTorch (default: "
        "eager with zero 3, else fused; `plan --launch` takes its framework's)",
    )


def add_overlap_factor(group: argparse._ActionsContainer) -> None:
    """--overlap-factor, of all commands that predict."""
    group.add_argument(
        "--overlap-factor",
        metavar="F",
        type=float,
        help="dualpipev and dualpipe: overlap of a pair's compute and its exchange of tokens, "
        "from 0 to 1 (all of the shorter one hides; default 1)",
    )


def run(args: argparse.Namespace) -> int:
    """Search, print, write; or serve the page that searches."""
    if network_predict.is_network(args.job_yaml):
        return network_predict.plan(args)
    network_predict.refuse_options(args)
    from paceline.errors import PlanError
    from paceline.plan.search import search
    from paceline.report import search_folder

    if args.engine != "local" and (args.serve is not None or args.profile is not None):
        raise PlanError("--serve and --profile search in this process; leave out --engine")
    if args.out is not None:
        search_folder.check_folder(args.out, force=args.force, launch=args.launch)
    job, batch, plan_fields = _job(args)
    cluster, cost, notes = job.cluster, None, list[str]()
    if args.profile is not None:
        from paceline.model.profile_cost import cost_from_profile

        cost, notes = cost_from_profile(args.profile, cluster)
        cluster = cost.with_launches(cluster)
    options = {
        "objective": args.objective,
        "tokens": args.tokens or job.tokens,
        "max_days": args.max_days,
        "budget": args.budget,
        "cost": cost,
        "rules": memory_rules(args, args.launch),
        **plan_fields,
        **launch_space(args.launch, plan_fields),
        **space_options(args),
    }
    counts = args.gpus or [job.gpus]
    if args.serve is not None:
        from paceline.cli.plan_page import PlanPage, serve

        return serve(PlanPage(job.llm, cluster, counts[0], batch, options, args.top), args.serve)
    with mapper_of(args) as mapper, ProgressBar("searching") as progress:
        result = search(
            job.llm, cluster, counts, batch, progress=progress, mapper=mapper, **options
        )
    files = _show(args, result, cost)
    if cost is not None:
        notes += [f"beyond the profile: {text}" for text in cost.outside]
    for note in (*notes[:3], *files):
        print(note, file=sys.stderr)
    return 0


def _show(args: argparse.Namespace, result: SearchResult, cost: ComputeCost | None) -> list[str]:
    """Print and write the result; notes on the files."""
    from paceline.report import search as report

    explained = None
    if args.explain is not None:
        explained = explain(result, args.explain[0], args.explain[1], cost)
    launch, start, notes = None, list[str](), list[str]()
    if args.launch is not None:
        from paceline.plan.launch.files import best_launch, launch_notes

        launch = best_launch(args.launch, result)
        plan, node_gpus = result.plan(launch.place), result.cluster.node.gpus
        start = launch_notes(args.launch, result.llm, plan, node_gpus)
    if args.out is not None:
        from paceline.report.search_folder import write_folder

        file = None if launch is None else (args.launch, launch.text)
        notes += (
            []
            if launch is None
            else [*map(str, launch.skipped), *report.memory_note(launch, args.launch)]
        )
        notes.append(write_folder(result, args.top, args.out, force=args.force, launch=file))
    if args.json:
        from paceline.report.result_json import lines_of_json

        mapping = report.to_mapping(result, args.top)
        if explained is not None:
            mapping["explained"] = explained.to_mapping()
        if launch is not None:
            mapping["launch"] = {"framework": args.launch, **launch.to_mapping(), "notes": start}
        sys.stdout.write(lines_of_json(mapping))
        return [*notes, *start]
    from paceline.report.terminal import print_lines, standard_output

    console = standard_output()
    screen = report.lines(result, args.top, console.width)
    if explained is not None:
        screen += report.explained_lines(explained, console.width)
    print_lines(screen, console)
    if launch is not None and args.out is None:
        print_lines(report.launch_lines(launch, args.launch, result, console.width), console)
        print(launch.text, end="")
    return [*notes, *start]


def launch_space(framework: str | None, plan_fields: dict[str, Any]) -> dict[str, Any]:
    """The plans of a search that a framework can express, with its kernels.

    Kernels that the job file names take precedence.
    """
    if framework is None:
        return {}
    from paceline.plan.launch.files import SPACES

    options = dict(SPACES[framework])
    if plan_fields.get("kernels", "auto") != "auto":
        del options["kernels"]
    return options


def explain(result: SearchResult, a: int, b: int, cost: ComputeCost | None) -> Explanation:
    """Plans of two ranks, term by term.

    Raises:
        PlanError: there is no plan of such a rank.
    """
    from paceline.errors import PlanError
    from paceline.plan.explain import explain_plans

    for rank in (a, b):
        if not 1 <= rank <= len(result):
            raise PlanError(f"there is no plan of rank {rank}; {len(result):,} plans fit")
    return explain_plans(result, a - 1, b - 1, cost)


def space_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of ``plan.search.search`` that the arguments give."""
    options: dict[str, Any] = {
        name: getattr(args, name)
        for name in (option[2:].replace("-", "_") for option, _ in LIMITS)
        if getattr(args, name) is not None
    }
    both = {"yes": (True,), "no": (False,), "both": (False, True), None: None}
    requested = {
        "micro_batches": args.micro_batch and tuple(args.micro_batch),
        "recomputes": args.recompute,
        "zeros": args.zero and tuple(args.zero),
        "shards": args.shards and tuple(args.shards),
        "sequence_parallels": both[args.sequence_parallel],
        "uneven": False if args.even else None,
        "precision": args.precision,
        "flash": False if args.no_flash else None,
        "kernels": args.kernels,
        "schedule": args.schedule,
        "overlap_factor": args.overlap_factor,
        "adapter_rank": args.adapter_rank,
    }
    return {**options, **{name: value for name, value in requested.items() if value is not None}}


def _job(args: argparse.Namespace) -> tuple[PlannedJob, int, dict[str, Any]]:
    """The job, its global batch, and the fields of its plan that hold for all plans."""
    from dataclasses import replace

    from paceline.errors import ModelError, PlanError
    from paceline.model.job_yaml import job_from_options, load_job

    if args.job_yaml is not None:
        names = ("model", "gpu", "cluster", "seq_len", "images", *PACKING)
        contradicting = [name for name in names if getattr(args, name)]
        if contradicting:
            option = contradicting[0].replace("_", "-")
            raise ModelError(f"--{option} contradicts {args.job_yaml}; change it there")
        job = load_job(args.job_yaml)
        if args.price is not None:
            cluster = replace(job.cluster, price_per_gpu_hour=args.price, price_source="given")
            job = replace(job, cluster=cluster)
    elif args.model is None:
        raise ModelError(
            "name the model to train: a job file, or --model with --gpu and --global-batch"
        )
    else:
        job = job_from_options(
            model=args.model,
            gpu=args.gpu,
            cluster=args.cluster,
            seq_len=args.seq_len,
            images=args.images,
            packing=packing_of(args),
            price_per_gpu_hour=args.price,
        )
    batch = args.global_batch or (job.plan.global_batch if job.plan else None)
    if batch is None:
        raise PlanError("the samples of one step are missing; give --global-batch")
    if args.gpus is None and job.gpus is None:
        raise PlanError("the number of GPUs is missing; give --gpus 1024 or --gpus 2000-3400")
    plan_fields = {name: getattr(job.plan, name) for name in PLAN_FIELDS} if job.plan else {}
    if plan_fields.get("schedule") == "interleaved":
        plan_fields["schedule"] = "1f1b"  # its vpp is searched
    if job.plan is not None and job.plan.shards:
        plan_fields["shards"] = (0, job.plan.shards)
    return job, batch, plan_fields


def tokens(text: str) -> float:
    """A number of tokens, such as 300B.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    from paceline.errors import QuantityError
    from paceline.quantities import parse_quantity

    try:
        number = parse_quantity(text, "tokens")
    except QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if number <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return number


def _names(text: str) -> tuple[str, ...]:
    choices = ("none", "selective", "full")
    names = tuple(name.strip() for name in text.split(","))
    if not set(names) <= set(choices):
        raise argparse.ArgumentTypeError(f"{text!r} names another than {', '.join(choices)}")
    return tuple(dict.fromkeys(names))
