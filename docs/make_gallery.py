"""Make the reports of the gallery with the present version; `make docs` runs it before Sphinx.

    python docs/make_gallery.py

The jobs are synthesised, but for the three public ones of the what-if paper, which are taken where
``$PACELINE_SHARED`` (or ``shared`` beside the checkout) has them. Nothing of it is kept in git.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.cli.main import run

HERE = Path(__file__).resolve().parent
#: A link of a page to a file that lies beside it.
LINK = re.compile(r'(?<=href=")[^"#:?]+(?=")')
#: Copied into the site as they are, and what the gallery's page takes in.
SITE, LIST = HERE / "_gallery" / "site", HERE / "_gallery" / "list.md"
SHARED = Path(os.environ.get("PACELINE_SHARED", HERE.parents[1] / "shared"))

JOBS_CSV = """\
job_id,submission_time,num_gpu,duration
a,0,32,7200
b,600,64,3600
c,900,8,1800
d,1200,8,1200
e,1500,16,5400
f,2400,32,3600
g,3000,8,9000
"""


@dataclass(frozen=True)
class Exhibit:
    """A page of the gallery.

    Attributes:
        name: of the file in the site.
        title: what is shown.
        about: what to look at.
        commands: what makes it, in order.
        page: the file that is shown.
    """

    name: str
    title: str
    about: str
    commands: tuple[str, ...]
    page: str = "out/report.html"


EXHIBITS = (
    Exhibit(
        "slow-worker",
        "One slow worker",
        "8 replicas of 4 stages; worker (dp 3, stage 1) computes 1.5 times as long.",
        (
            "paceline synth --dp 8 --pp 4 --microbatches 16 --steps 10 --slow-worker 3,1,1.5"
            " -o trace.parquet",
            "paceline analyze trace.parquet --out out",
        ),
    ),
    Exhibit(
        "fsdp",
        "FSDP2 with a slow GPU",
        "8 GPUs, one of them 1.4 times as slow: what the gathers hide, and what waits.",
        (
            "paceline synth --fsdp --dp 8 --pp 1 --layers 4 --steps 6 --slow-worker 3,0,1.4"
            " -o trace.parquet",
            "paceline analyze trace.parquet --out out",
        ),
    ),
    Exhibit(
        "last-stage",
        "A long last stage, and pauses",
        "The loss layer makes the last stage long; the garbage collector stops workers at times.",
        (
            "paceline synth --dp 4 --pp 4 --steps 12 --slow-last-stage 1.4,1.3"
            " --gc-pauses 0.05,0.3 -o trace.parquet",
            "paceline analyze trace.parquet --layers 9,9,9,9 --out out",
        ),
    ),
    Exhibit(
        "comparison",
        "Did the fix work?",
        "The slow worker was replaced: what changed, and how sure that is.",
        (
            "paceline synth --dp 8 --pp 4 --steps 10 --slow-worker 3,1,1.5 -o before.parquet",
            "paceline synth --dp 8 --pp 4 --steps 10 --seed 1 -o after.parquet",
            "paceline compare before.parquet after.parquet -o comparison.html",
        ),
        page="comparison.html",
    ),
    Exhibit(
        "plans",
        "Plans for 16 GPUs",
        "All legal plans of Llama 3.1 8B that fit on 16 H100s, by step time and memory.",
        (
            "paceline plan --model llama3.1-8b --gpu h100 --gpus 16 --global-batch 64"
            " --seq-len 8192 -o out",
        ),
    ),
    Exhibit(
        "fleet",
        "Four jobs as one dataset",
        "The figures of the what-if paper, of four made-up jobs.",
        (
            "mkdir traces",
            *(
                f"paceline synth --dp 4 --pp 2 --steps 4 --seed {seed} --slow-worker"
                f" {seed},{seed % 2},1.{seed} -o traces/job-{seed}.parquet"
                for seed in range(4)
            ),
            "paceline fleet traces -o out --processes 0",
        ),
    ),
    Exhibit(
        "queue",
        "A queue under three policies",
        "Seven jobs on 64 GPUs: first in, first out; backfill; shortest remaining time first.",
        ("paceline queue jobs.csv --gpus 64 --compare fifo,backfill,srtf -o out",),
    ),
)

#: The public jobs: file, title, what the artifact's authors say of them.
PUBLIC = (
    ("AR", "A real job with one artificially slowed worker", "64 GPUs, 44 steps"),
    ("SE", "A real job with uneven sequence lengths", "128 GPUs, 43 steps"),
    ("ST", "A real job with a long last stage", "8 GPUs, 32 steps"),
)


def exhibits() -> list[Exhibit]:
    """Those of EXHIBITS, and the public jobs that are here."""
    found = list(EXHIBITS)
    folder = SHARED / "data" / "whatif"
    for name, title, about in PUBLIC:
        if (folder / f"trace-{name}.parquet").is_file():
            command = (
                f"paceline analyze {shlex.quote(str(folder / f'trace-{name}.parquet'))}"
                f" --job {shlex.quote(str(folder / f'meta-{name}.yaml'))} --out out"
            )
            source = "from the public artifact of the what-if paper (ByteDance-Seed, Apache-2.0)"
            found.append(
                Exhibit(f"public-{name.lower()}", title, f"{about}; {source}.", (command,))
            )
    return found


def make(exhibit: Exhibit) -> None:
    """Run the commands in a folder of their own; keep the page and the files that it links."""
    with TemporaryDirectory() as name, contextlib.chdir(name):
        Path("jobs.csv").write_text(JOBS_CSV, encoding="utf-8")
        for command in exhibit.commands:
            words = shlex.split(command)
            if words[0] == "mkdir":
                Path(words[1]).mkdir()
                continue
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                code = run(words[1:])
            if code:
                raise SystemExit(f"{command}: exit code {code}\n{out.getvalue()}")
        keep(Path(exhibit.page), exhibit.name)


def keep(page: Path, name: str) -> None:
    """Copy a page into the site, and the files that it links into a folder of its name."""
    folder = SITE / "gallery-pages"

    def kept(match: re.Match[str]) -> str:
        if not (page.parent / match[0]).is_file():
            return match[0]
        target = folder / name / match[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page.parent / match[0], target)
        return f"{name}/{match[0]}"

    text = LINK.sub(kept, page.read_text(encoding="utf-8"))
    (folder / f"{name}.html").write_text(text, encoding="utf-8")


def entry(exhibit: Exhibit) -> str:
    """The part of the gallery's page about an exhibit."""
    shown = "\n".join(c.replace(str(SHARED), "$PACELINE_SHARED") for c in exhibit.commands)
    link = f'<a href="gallery-pages/{exhibit.name}.html">Open the page</a>'
    return f"## {exhibit.title}\n\n{exhibit.about} {link}.\n\n```sh\n{shown}\n```\n"


def main() -> None:
    """Make all pages and their list."""
    shutil.rmtree(SITE.parent, ignore_errors=True)
    (SITE / "gallery-pages").mkdir(parents=True)
    shown = exhibits()
    for exhibit in shown:
        make(exhibit)
    LIST.write_text("\n".join(map(entry, shown)), encoding="utf-8")
    print(f"the gallery: {len(shown)} pages", file=sys.stderr)


if __name__ == "__main__":
    main()
