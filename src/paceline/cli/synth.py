"""``paceline synth``: make a trace with known causes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from paceline.cli import synth_layers, trace_input
from paceline.cli.commands import HELP
from paceline.cli.numbers import parse_floats, whole_number
from paceline.cli.trace_input import file_name

if TYPE_CHECKING:
    from paceline.synth import SlowWorker, SynthSpec
    from paceline.trace import Trace
    from paceline.trace.seqlens import SeqLens

#: A 32K job, as in Figure 10 of the what-if paper.
DEFAULT_MAX_TOKENS = 32_768

EXAMPLE = """\
example:
  paceline synth --dp 8 --pp 4 --microbatches 16 --steps 10 --slow-worker 3,1,1.5 -o trace.parquet
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "synth",
        help=HELP["synth"],
        description="Simulate a training job with chosen causes of slowness and write its trace. "
        "The file's metadata keeps the injected causes.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    job = parser.add_argument_group("the job")
    job.add_argument(
        "--from-plan",
        metavar="YAML",
        type=file_name,
        help="a job file of `paceline predict`: take durations and shape from its plan. The "
        "options --dp, --pp, --tp, --vpp, --microbatches, --schedule and --overlap are then "
        "ignored; --layers cannot be given",
    )
    job.add_argument(
        "--scale", type=float, help="with --from-plan: factor on all of its durations (default 1)"
    )
    job.add_argument("--dp", type=int, default=8, help="data-parallel ranks (default 8)")
    job.add_argument("--pp", type=int, default=4, help="pipeline stages (default 4)")
    job.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks (default 1)")
    job.add_argument(
        "--vpp", type=int, help="model chunks per stage (default: 1, or what --schedule needs)"
    )
    job.add_argument(
        "--microbatches",
        default="16",
        metavar="N[,N...]",
        help="microbatches of every replica, or one number per replica (default 16)",
    )
    job.add_argument("--steps", type=int, default=10, help="steps (default 10)")
    job.add_argument(
        "--schedule",
        choices=("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev", "dualpipe"),
        help="pipeline schedule (default: interleaved if --vpp is above 1, otherwise 1f1b); the "
        "last four split the backward",
    )
    job.add_argument(
        "--overlap", action="store_true", help="reduce gradients during the backward pass"
    )
    job.add_argument(
        "--no-noops",
        action="store_true",
        help="under --vpp, do not record sends and recvs that move nothing",
    )
    job.add_argument(
        "--noise", type=float, default=0.01, help="variation of all durations (default 0.01)"
    )
    job.add_argument("--seed", type=int, default=0, help="seed of all draws (default 0)")
    synth_layers.add(parser)
    _add_causes(parser)
    trace_input.add_output(parser, "the parquet file to write")
    parser.set_defaults(run=run)


def _add_causes(parser: argparse.ArgumentParser) -> None:
    causes = parser.add_argument_group("causes of slowness (the first five may be repeated)")
    for flag, metavar, text in (
        ("--slow-worker", "DP,PP[,PEER],FACTOR", "computes of a worker take longer"),
        ("--slow-link", "DP,PP,FACTOR", "transfers from stage PP to the next take longer"),
        ("--slow-nic", "DP,PP,FACTOR", "a NIC slows the DP collectives of stage PP"),
        ("--flapping-nic", "DP,PP,FACTOR,PROBABILITY", "the same in some steps only"),
        ("--slow-peers", "DP,PP,FACTOR", "collectives of TP and CP peers take longer (NVLink)"),
    ):
        causes.add_argument(flag, action="append", default=[], metavar=metavar, help=text)
    causes.add_argument(
        "--slow-last-stage",
        metavar="FORWARD,BACKWARD",
        help="factors of the last stage's forward and backward",
    )
    causes.add_argument(
        "--sequence-imbalance",
        type=float,
        default=0.0,
        metavar="CV",
        help="variation of the cost of microbatches",
    )
    causes.add_argument(
        "--seqlens-out",
        type=file_name,
        metavar="FILE",
        help="draw long-tailed sequence lengths, which determine the cost of microbatches, and "
        "write them to this parquet file",
    )
    causes.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="with --seqlens-out: most tokens in a microbatch, and longest sequence "
        "(default 32768)",
    )
    causes.add_argument(
        "--gc-pauses",
        metavar="PROBABILITY,SECONDS",
        help="garbage collection makes some forwards longer",
    )
    causes.add_argument(
        "--launch-delay",
        metavar="SECONDS[,PROBABILITY]",
        help="the first forward of a step waits for data",
    )
    causes.add_argument(
        "--clock-skew",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="standard deviation of the workers' clock offsets",
    )


def run(args: argparse.Namespace) -> int:
    """Synthesise and write."""
    from paceline.errors import OutputError
    from paceline.files import check_targets
    from paceline.sources import parquet
    from paceline.sources.seqlens import write_seqlens

    targets = [args.output, *([args.seqlens_out] if args.seqlens_out else [])]
    check_targets(targets, force=args.force)
    if len({target.resolve() for target in targets}) < len(targets):
        raise OutputError(f"-o and --seqlens-out both name {args.output}")
    trace, spec = _spec_of_plan(args) if args.from_plan else _spec_of_shape(args)
    parquet.write(trace, args.output, force=args.force)
    if spec.seqlens is not None:
        write_seqlens(spec.seqlens, args.seqlens_out, force=args.force)
        print(
            f"{args.seqlens_out}: {len(spec.seqlens.lengths):,} sequences in "
            f"{spec.seqlens.exists.sum():,} microbatches"
        )
    print(
        f"{args.output}: {len(trace):,} operations, {trace.n_steps} steps of "
        f"{trace.job.workers} workers"
    )
    return 0


def _spec_of_shape(args: argparse.Namespace) -> tuple[Trace, SynthSpec]:
    """A job of the arguments' shape."""
    from paceline.errors import SynthError
    from paceline.synth import synthesize

    if args.scale is not None:
        raise SynthError("--scale is for --from-plan, whose durations it multiplies")
    spec = spec_of(args)
    return synthesize(spec), spec


def _spec_of_plan(args: argparse.Namespace) -> tuple[Trace, SynthSpec]:
    """A job of the plan's shape, with the durations that the model predicts."""
    from paceline.errors import PlanError
    from paceline.files import check_not_input
    from paceline.model.costs import plan_costs
    from paceline.model.job_yaml import load_job
    from paceline.model.plan_check import check
    from paceline.synth.from_plan import plan_spec, synthesize_plan

    check_not_input([args.output], [args.from_plan])
    if synth_layers.layers_of(args) is not None:
        raise PlanError(
            "--from-plan makes whole passes; --layers and related options are for other jobs"
        )
    job = load_job(args.from_plan)
    if job.plan is None:
        raise PlanError(
            f"{args.from_plan} has no plan; add one, such as plan: {{tp: 8, pp: 8, ...}}"
        )
    check(job.plan, job.llm)
    plan = job.plan
    args.dp, args.pp, args.tp, args.vpp = plan.dp, plan.pp, plan.tp, len(plan.places)
    args.microbatches, args.schedule = str(plan.microbatches), plan.schedule
    costs = plan_costs(job.llm, plan, job.cluster)
    spec = plan_spec(plan, costs, spec_of(args))
    scale = 1.0 if args.scale is None else args.scale
    return synthesize_plan(plan, costs, spec, scale=scale), spec


def spec_of(args: argparse.Namespace) -> SynthSpec:
    """The job that the arguments describe."""
    from dataclasses import replace

    from paceline.graph.zero_bubble import SPLIT_CHUNKS
    from paceline.synth import SlowLink, SlowNic, SlowPeers, SynthSpec

    def numbers(text: str, flag: str, form: str, *n: int) -> tuple[float, ...]:
        return parse_floats(text, n, f"{form} after {flag}")

    def at(flag: str, dp: float, pp: float) -> tuple[int, int]:
        return whole_number(dp, f"the dp rank of {flag}"), whole_number(pp, f"the stage of {flag}")

    triple = "DP,PP,FACTOR"
    workers = [
        numbers(text, "--slow-worker", "DP,PP[,PEER],FACTOR", 3, 4) for text in args.slow_worker
    ]
    peers = [numbers(text, "--slow-peers", triple, 3) for text in args.slow_peers]
    links = [numbers(text, "--slow-link", triple, 3) for text in args.slow_link]
    nics = [numbers(text, "--slow-nic", triple, 3) for text in args.slow_nic]
    nics += [
        numbers(text, "--flapping-nic", f"{triple},PROBABILITY", 4) for text in args.flapping_nic
    ]
    counts = numbers(args.microbatches, "--microbatches", "whole numbers", 1, args.dp)
    last, pauses, delay = args.slow_last_stage, args.gc_pauses, args.launch_delay
    stage = numbers(last, "--slow-last-stage", "FORWARD,BACKWARD", 2) if last else None
    gc = numbers(pauses, "--gc-pauses", "PROBABILITY,SECONDS", 2) if pauses else None
    launch = numbers(delay, "--launch-delay", "SECONDS[,PROBABILITY]", 1, 2) if delay else None
    several = tuple(whole_number(n, "--microbatches") for n in counts)
    microbatches = several[0] if len(several) == 1 else several
    spec = SynthSpec(
        dp=args.dp,
        pp=args.pp,
        tp=args.tp,
        vpp=SPLIT_CHUNKS.get(args.schedule, 1) if args.vpp is None else args.vpp,
        layers=synth_layers.layers_of(args),
        microbatches=microbatches,
        steps=args.steps,
        schedule=args.schedule,
        overlap=args.overlap,
        noops=False if args.no_noops else None,
        noise=args.noise,
        seed=args.seed,
        slow_workers=tuple(_slow_worker(*worker) for worker in workers),
        slow_peers=tuple(SlowPeers(*at("--slow-peers", dp, pp), f) for dp, pp, f in peers),
        slow_links=tuple(SlowLink(*at("--slow-link", dp, pp), f) for dp, pp, f in links),
        slow_nics=tuple(SlowNic(*at("a NIC", dp, pp), *factors) for dp, pp, *factors in nics),
        slow_last_stage=(stage[0], stage[1]) if stage else None,
        sequence_imbalance=args.sequence_imbalance,
        gc_pauses=(gc[0], gc[1]) if gc else None,
        launch_delay=(launch[0], launch[1] if len(launch) == 2 else 1.0) if launch else None,
        clock_skew_s=args.clock_skew,
    )
    # Drawn last, once the job's size is known to be reasonable.
    return replace(spec, seqlens=_seqlens(args, microbatches))


def _slow_worker(dp: float, pp: float, *rest: float) -> SlowWorker:
    """DP,PP,FACTOR or DP,PP,PEER,FACTOR as a cause."""
    from paceline.synth import SlowWorker

    *peer, factor = rest
    names = ("the dp rank", "the stage", "the peer")
    place = [
        whole_number(number, f"{name} of --slow-worker")
        for number, name in zip((dp, pp, *peer), names, strict=False)
    ]
    return SlowWorker(place[0], place[1], factor, *place[2:])


def _seqlens(args: argparse.Namespace, microbatches: int | tuple[int, ...]) -> SeqLens | None:
    """The sequence lengths that the arguments ask for."""
    from paceline.errors import SynthError
    from paceline.synth import draw_seqlens

    if args.seqlens_out is None:
        if args.max_tokens is not None:
            raise SynthError("--max-tokens needs --seqlens-out FILE, which draws sequence lengths")
        return None
    max_tokens = DEFAULT_MAX_TOKENS if args.max_tokens is None else args.max_tokens
    return draw_seqlens(args.dp, microbatches, args.steps, max_tokens, args.seed)
