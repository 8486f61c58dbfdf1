"""``paceline predict``: step time, memory and cost of a plan before the run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.cli import network_predict
from paceline.cli.case_input import add_json
from paceline.cli.commands import HELP
from paceline.cli.engine_input import add_engine, mapper_of
from paceline.cli.memory_options import FRAMEWORKS, add_memory, memory_rules
from paceline.cli.packing_options import NAMES as PACKING
from paceline.cli.packing_options import add_packing, packing_of
from paceline.cli.plan import add_adapter_rank, add_kernels, add_overlap_factor, tokens
from paceline.cli.progress import ProgressBar
from paceline.cli.trace_input import file_name

if TYPE_CHECKING:
    from paceline.model.job_yaml import PlannedJob

EXAMPLES = """\
examples:
  paceline predict --model gpt3-175b --gpus 1024 --gpu a100-80g --tp 8 --pp 8 \\
    --micro-batch 1 --global-batch 1536 --tokens 300B
  paceline predict job.yaml --timeline step.json.gz
  paceline predict --runs runs.csv --cluster mycluster.yaml -o predicted.csv
  paceline predict net.layers.json --gpu v100-16g --gpus 64 --strategy data+spatial --split 4 \\
    --global-batch 1024

job.yaml: model, cluster, gpus, plan, training; see docs/predict.md. runs.csv: a row per run, as
for `paceline calibrate`; with step_time_s in it, the errors are shown.
"""

#: Option -> its meaning; whole numbers, fields of the plan.
DEGREES = (
    ("--tp", "tensor-parallel ranks"),
    ("--pp", "pipeline stages"),
    ("--dp", "replicas (default: the GPUs over the other degrees)"),
    ("--cp", "context-parallel ranks"),
    ("--ep", "expert-parallel ranks"),
    ("--vpp", "model chunks per stage"),
    ("--micro-batch", "samples of one microbatch (default 1)"),
    ("--global-batch", "samples of one step"),
    ("--zero", "0: nothing sharded, 1: optimizer (default), 2: gradients, 3: parameters"),
)
SWITCHES = (
    ("--sequence-parallel", "sequence_parallel", True, "split norms and residuals over tp"),
    ("--no-flash", "flash", False, "attention is not fused"),
    (
        "--fused-experts",
        "fused_experts",
        True,
        "one kernel per product for all experts, CUDA graphs",
    ),
    ("--no-overlap-dp", "overlap_dp", False, "gradients are reduced after the backward pass"),
    ("--overlap-tp", "overlap_tp", True, "tensor-parallel collectives hide behind products"),
    ("--overlap-pp", "overlap_pp", True, "hand-overs between stages hide behind computes"),
)
_OTHERS = (
    *("recompute", "recompute_modules", "precision", "schedule", "overlap_factor", "kernels"),
    *("adapter_rank", "offload_layers", "shards"),
)
_WORST = 5


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "predict",
        help=HELP["predict"],
        description="Predict a training step: its time and the parts of it, memory, cost.",
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
        "--profile",
        metavar="FILE",
        type=file_name,
        help="operator times of `paceline profile`; without --gpu, the prediction is for the "
        "profiled machine",
    )
    job.add_argument("--gpus", metavar="N", type=int, help="total number of GPUs")
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
    plan = parser.add_argument_group("the plan")
    for option, text in DEGREES:
        plan.add_argument(option, metavar="N", type=int, help=text)
    plan.add_argument("--recompute", choices=("none", "selective", "full"))
    plan.add_argument(
        "--recompute-modules",
        metavar="NAME,...",
        type=_words,
        help="with --recompute selective: core_attn, layernorm, moe_act, mla_up_proj, mlp, moe, "
        "shared_experts (default: norms and activations)",
    )
    plan.add_argument(
        "--precision",
        choices=("fp32", "tf32", "fp16", "bf16", "amp", "fp8", "nvfp4"),
        help="tf32 and amp: of networks, whose amp is in fp16 or bf16",
    )
    add_kernels(plan)
    plan.add_argument(
        "--schedule",
        choices=("1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev", "dualpipe"),
        help="zb-h1, zbv, dualpipev and dualpipe split the backward (default: 1f1b)",
    )
    add_overlap_factor(plan)
    plan.add_argument(
        "--layers", metavar="N,N,...", type=_layers, help="layers of each stage (and chunk)"
    )
    for option, field, value, text in SWITCHES:
        plan.add_argument(option, dest=field, action="store_const", const=value, help=text)
    add_memory(parser)
    add_adapter_rank(plan)
    plan.add_argument(
        "--shards",
        metavar="N",
        type=int,
        help="with --zero 3: ranks that share one copy of the parameters (HSDP; default: all)",
    )
    plan.add_argument(
        "--offload-layers",
        metavar="N",
        type=int,
        help="layers whose activations are kept in the host's memory until the backward",
    )
    plan.add_argument(
        "--software",
        metavar="NAME",
        help="release of the software, if results depend on it: nemo-26.04 (default: the newest)",
    )
    plan.add_argument(
        "--framework",
        choices=FRAMEWORKS,
        help="memory and kernels of this framework, as `paceline plan --launch` counts them",
    )
    parser.add_argument("--runs", metavar="CSV", type=file_name, help="predict every row")
    add_engine(parser.add_argument_group("who predicts --runs"))
    parser.add_argument(
        "-o", "--output", metavar="CSV", type=file_name, help="with --runs: rows and predictions"
    )
    parser.add_argument(
        "--timeline",
        metavar="FILE",
        type=file_name,
        help="write the predicted step for Perfetto; gzipped if its name ends in .gz",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=file_name,
        help="draw the fullest stage's memory over the step (.svg, .png, .pdf)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")
    network_predict.add_predict(parser)
    add_json(parser, "the prediction")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict, print, write."""
    if args.runs is not None:
        return _run_all(args)
    if network_predict.is_network(args.job_yaml):
        return network_predict.predict(args)
    network_predict.refuse_options(args)
    from paceline.errors import ModelError, PlanError
    from paceline.files import check_not_input, check_targets, write_files
    from paceline.plan.predict import predict
    from paceline.report import prediction as report

    if args.output is not None:
        raise ModelError("-o is for --runs; for the step itself there are --json and --timeline")
    if args.engine != "local":
        raise ModelError("--engine is for --runs; one step is predicted here")
    targets = [path for path in (args.timeline, args.plot) if path is not None]
    if targets:
        check_not_input(targets, [args.job_yaml, args.profile])
        check_targets(targets, force=args.force)
    job = planned_job(args)
    if job.plan is None:
        raise PlanError(
            "there is no plan; give --tp, --pp, --micro-batch, --global-batch and the like (or let "
            "`paceline plan` find one)"
        )
    plan = job.plan
    if args.software is not None:
        from paceline.model.software import as_run_by, software_preset

        plan = as_run_by(job.llm, plan, software_preset(args.software))
    if args.framework is not None:
        from paceline.plan.launch.files import run_by

        plan = run_by(args.framework, job.llm, plan, job.cluster.node.gpus)
    cost, cluster, notes = None, job.cluster, list[str]()
    if args.profile is not None:
        from paceline.model.profile_cost import cost_from_profile

        cost, notes = cost_from_profile(args.profile, cluster)
        # The profiled host, not a typical one, launches the kernels.
        cluster = cost.with_launches(cluster)
    rules = memory_rules(args, args.framework)
    prediction = predict(job.llm, plan, cluster, cost=cost, tokens=job.tokens, rules=rules)
    if cost is not None:
        notes = [*notes, *(f"beyond the profile: {text}" for text in cost.outside)]
    if args.timeline is not None:
        writer = report.timeline_writer(prediction, compress=args.timeline.suffix == ".gz")
        write_files({args.timeline: writer}, force=args.force)
    if args.plot is not None:
        from paceline.plan.memory_curve import memory_curve
        from paceline.plot import figure_writer, memory

        axes = memory(memory_curve(prediction), job.cluster.gpu.memory_bytes)
        write_files({args.plot: figure_writer(axes, args.plot)}, force=args.force)
    if args.json:
        from paceline.report.result_json import lines_of_json

        mapping = report.to_mapping(prediction)
        mapping["warnings"] = [*mapping["warnings"], *notes]
        sys.stdout.write(lines_of_json(mapping))
    else:
        from paceline.report.terminal import print_lines, standard_output

        console = standard_output()
        print_lines(report.lines(prediction, console.width), console)
        if notes:
            others = f" (and {len(notes) - 1} more notes; --json has all)" if len(notes) > 1 else ""
            print(f"note: {notes[0]}{others}", file=sys.stderr)
    if args.timeline is not None:
        print(f"wrote {args.timeline}; open it in ui.perfetto.dev", file=sys.stderr)
    if args.plot is not None:
        print(f"wrote {args.plot}", file=sys.stderr)
    return 0


def plan_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of the plan that the options give."""
    names = [option[2:].replace("-", "_") for option, _ in DEGREES]
    names += [field for _, field, _, _ in SWITCHES]
    fields = {name: getattr(args, name) for name in (*names, *_OTHERS)}
    fields["layers_per_stage"] = args.layers
    return {name: value for name, value in fields.items() if value is not None}


def planned_job(args: argparse.Namespace) -> PlannedJob:
    """The job that the file, or the options, describe; options change a file's plan."""
    from dataclasses import replace

    from paceline.errors import ModelError
    from paceline.model.job_yaml import derive_dp, job_from_options, load_job

    fields = plan_fields(args)
    if args.job_yaml is None:
        if args.model is None:
            raise ModelError(
                "name the model to train: a job file, or --model with --gpu and a plan"
            )
        cluster = args.cluster
        if args.profile is not None and args.gpu is None and cluster is None:
            from paceline.model.profile import load_profile
            from paceline.model.profile_cost import cluster_from_profile

            cluster = cluster_from_profile(load_profile(args.profile))
        return job_from_options(
            model=args.model,
            gpu=args.gpu,
            cluster=cluster,
            gpus=args.gpus,
            tokens=args.tokens,
            price_per_gpu_hour=args.price,
            seq_len=args.seq_len,
            images=args.images,
            packing=packing_of(args),
            **fields,
        )
    names = ("model", "gpu", "cluster", "seq_len", "images", *PACKING)
    contradicting = [name for name in names if getattr(args, name)]
    if contradicting:
        option = contradicting[0].replace("_", "-")
        raise ModelError(f"--{option} contradicts {args.job_yaml}; change it there")
    job = load_job(args.job_yaml)
    cluster = job.cluster
    if args.price is not None:
        cluster = replace(cluster, price_per_gpu_hour=args.price, price_source="given")
    plan, gpus = job.plan, args.gpus or job.gpus
    if plan is not None and (fields or args.gpus):
        plan = replace(plan, **fields)
        if gpus is not None and "dp" not in fields:
            plan = replace(plan, dp=derive_dp(gpus, plan.tp, plan.pp, plan.cp))
        gpus = plan.gpus
    return replace(job, cluster=cluster, plan=plan, gpus=gpus, tokens=args.tokens or job.tokens)


def _run_all(args: argparse.Namespace) -> int:
    """Predict every row of a file of runs."""
    from paceline.errors import ModelError
    from paceline.files import check_not_input, check_targets, text_writer, write_files
    from paceline.networks.runs import is_network_runs
    from paceline.plan.predict_runs import predict_runs
    from paceline.plan.runs import (
        error_table,
        is_cluster_folder,
        predicted_csv,
        read_runs,
        run_clusters,
    )
    from paceline.report.prediction import error_lines
    from paceline.report.terminal import print_lines, standard_output

    forbidden = [
        args.job_yaml,
        args.model,
        args.timeline,
        args.plot,
        args.profile,
        args.framework,
        *(getattr(args, name) for name in PACKING),
        *plan_fields(args).values(),
    ]
    if any(value is not None for value in forbidden):
        raise ModelError("--runs predicts the rows of a file; leave out the job and its plan")
    if args.gpu is not None and args.cluster is not None:
        raise ModelError("give --gpu or --cluster, not both")
    if is_network_runs(args.runs):
        from paceline.cli import network_runs

        return network_runs.check(args)
    if args.output is not None:
        check_not_input([args.output], [args.runs])
        check_targets([args.output], force=args.force)
    requested = args.cluster or args.gpu
    one = requested is not None and not is_cluster_folder(requested)
    table = read_runs(args.runs, skip_errors=True, ignore_gpu=one)
    clusters = run_clusters(table.runs, requested)
    with mapper_of(args) as mapper, ProgressBar("predicting") as progress:
        outcome = predict_runs(table, clusters, progress, mapper)
    seconds_of, row_errors, notes = outcome.predicted_s, outcome.errors, outcome.warnings
    if not seconds_of:
        line, problem = min(row_errors.items())
        raise ModelError(f"{args.runs}: no row can be predicted; line {line}: {problem}")
    text = predicted_csv(table, seconds_of, outcome.intervals, row_errors)
    runs = [run for run in table.runs if run.line in seconds_of]
    predicted = [seconds_of[run.line] for run in runs]
    timed = [i for i, run in enumerate(runs) if run.measured_s is not None]
    measured = [float(runs[i].measured_s or 0.0) for i in timed]
    errors = error_table(measured, [predicted[i] for i in timed]) if timed else None
    if args.output is not None:
        write_files({args.output: text_writer(text)}, force=args.force)
    if args.json:
        from paceline.report.result_json import lines_of_json

        rows = [
            {
                "line": run.line,
                "step_time_s": run.measured_s,
                "predicted_step_time_s": seconds,
                "low_s": outcome.intervals[run.line].low_s,
                "high_s": outcome.intervals[run.line].high_s,
            }
            for run, seconds in zip(runs, predicted, strict=True)
        ]
        rejected = [{"line": line, "error": row_errors[line]} for line in sorted(row_errors)]
        mapping = {"schema": 1, "errors": errors, "runs": rows, "warnings": notes}
        sys.stdout.write(lines_of_json({**mapping, "not_predicted": rejected}))
        return 0
    if args.output is None:
        sys.stdout.write(text)
    console = standard_output()
    if errors is not None:
        share = {i: predicted[i] / seconds - 1 for i, seconds in zip(timed, measured, strict=True)}
        far = sorted(timed, key=lambda i: -abs(share[i]))[:_WORST]
        worst = [(f"line {runs[i].line}: {runs[i].plan.describe()}", share[i]) for i in far]
        if args.output is not None:
            print_lines(error_lines(errors, worst, console.width), console)
        else:
            for error_line in error_lines(errors, worst, console.width):
                print(error_line.plain, file=sys.stderr)
    if notes:
        others = f" (and {len(notes) - 1} more)" if len(notes) > 1 else ""
        print(f"note: {notes[0]}{others}", file=sys.stderr)
    if args.output is not None:
        print(f"wrote {args.output}: {len(table.rows)} rows", file=sys.stderr)
    for row_line in _rejected(row_errors):
        print(row_line, file=sys.stderr)
    return 0


def _rejected(errors: Mapping[int, str]) -> list[str]:
    """The number of rows that were not predicted, a line per reason."""
    reasons: dict[str, list[int]] = {}
    for line, problem in sorted(errors.items()):
        reasons.setdefault(problem, []).append(line)
    if not reasons:
        return []
    head = f"{len(errors)} {'row was' if len(errors) == 1 else 'rows were'} not predicted:"
    often = sorted(reasons.items(), key=lambda entry: -len(entry[1]))
    lines = [
        f"  line {numbers[0]}"
        + (f" and {len(numbers) - 1} more" if len(numbers) > 1 else "")
        + f": {problem}"
        for problem, numbers in often[:_WORST]
    ]
    if len(often) > _WORST:
        lines.append(f"  and {len(often) - _WORST} more reasons; --json has all")
    return [head, *lines]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of layers, such as 9,9,9,8"
        ) from None
