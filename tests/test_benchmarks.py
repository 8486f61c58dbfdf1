"""Every benchmark can be started: what one moves, another may import."""

import subprocess
import sys

import doc_pages

BENCHMARKS = doc_pages.ROOT / "benchmarks"
#: Prints what each module lacks, but for packages that may be absent.
SCRIPT = """
import importlib, sys
names, helpers = (text.split(",") for text in sys.argv[1:])
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in (*names, *helpers, "paceline"):
            print(name, error)
    except Exception as error:
        print(name, type(error).__name__, error)
"""


def test_every_benchmark_imports_what_there_is():
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
    helpers = [path.stem for path in (doc_pages.ROOT / "tests").glob("*.py")]
    assert len(names) > 30
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(names), ",".join(helpers)],
        cwd=BENCHMARKS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
