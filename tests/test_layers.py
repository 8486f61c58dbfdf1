"""The layers of DESIGN.md: a module imports only from the lines above its own."""

import ast
import re
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "paceline"
LAYERS = (
    *(
        "errors",
        "extras",
        "robust",
        "jumps",
        "ramps",
        "occurrence",
        "jit",
        "files",
        "blockfile",
        "units",
        "quantities",
        "marked_yaml",
        "client",
        "trace",
        "sources",
        "ranks",
        "model",
        "networks",
        "graph",
        "simulate",
        "synth",
        "whatif",
    ),
    *(
        "diagnose",
        "remedies",
        "plan",
        "scheduling",
        "comparison",
        "detect",
        "ledger",
        "hosts",
        "pause",
        "mitigate",
        "record",
        "integrations",
        "results",
        "fleet",
        "report",
    ),
    *("plot", "monitor", "watch", "demo", "doctor", "cli"),
)
# What runs inside the user's job imports the standard library and these; torch in functions only.
LIGHT = {
    "record": ("record", "blockfile"),
    "integrations": ("integrations", "record", "blockfile"),
    "blockfile": ("blockfile",),
}
# What a file of integrations is for, and imported only by who trains with it.
TRAINERS = ("composer", "deepspeed", "lightning", "transformers")
PUBLIC = ("__init__.py", "__main__.py")


def imports_of(path: Path, package: Path) -> list[tuple[str, bool]]:
    """(dotted module, whether inside a function) of all imports, relative ones made absolute."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.walk(node)
    }
    found = []
    parents = [package.name, *path.relative_to(package).parent.parts]
    for node in ast.walk(tree):
        lazy = id(node) in inside
        if isinstance(node, ast.Import):
            found += [(alias.name, lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            found += [(f"{module}.{alias.name}", lazy) for alias in node.names]
    return found


def file_of(module: str, package: Path) -> Path | None:
    """The file of this package that an imported name comes from."""
    parts = module.split(".")
    if parts[0] != package.name:
        return None
    while parts:
        path = package.parent.joinpath(*parts)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
        parts.pop()
    return None


def layer_of(path: Path, package: Path) -> str:
    return path.relative_to(package).with_suffix("").parts[0]


def violations(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package)
        if str(where) in PUBLIC:
            continue
        mine = layer_of(path, package)
        if mine not in LAYERS:
            found.append(f"{where}: {mine} is in no line of DESIGN.md's list")
            continue
        for module, lazy in imports_of(path, package):
            target = file_of(module, package)
            if mine in LIGHT:
                top = module.split(".")[0]
                allowed = top in sys.stdlib_module_names or (top == "torch" and lazy)
                allowed |= mine == "integrations" and top == path.stem and top in TRAINERS
                if not allowed and (target is None or layer_of(target, package) not in LIGHT[mine]):
                    found.append(f"{where}: {mine} imports {module}")
                continue
            if target is None:
                continue
            other = layer_of(target, package)
            if other in LAYERS and LAYERS.index(other) > LAYERS.index(mine):
                found.append(f"{where}: {mine} imports {module}, from a line below it")
            if str(target.relative_to(package)) in PUBLIC and mine != LAYERS[-1]:
                found.append(f"{where}: imports {module} from the public surface")
    return found


def cycles(package: Path) -> list[str]:
    """Import cycles among files, as text."""
    edges = {}
    for path in sorted(package.rglob("*.py")):
        targets = {file_of(module, package) for module, _ in imports_of(path, package)}
        edges[path] = sorted(targets - {None, path})
    found, done = [], set()

    def walk(path: Path, trail: list[Path]) -> None:
        if path in trail:
            ring = [*trail[trail.index(path) :], path]
            found.append(" -> ".join(str(p.relative_to(package)) for p in ring))
        elif path not in done:
            for target in edges.get(path, ()):
                walk(target, [*trail, path])
            done.add(path)

    for path in edges:
        walk(path, [])
    return found


def test_every_layer_exists():
    absent = [
        name
        for name in LAYERS
        if not ((PACKAGE / f"{name}.py").is_file() or (PACKAGE / name / "__init__.py").is_file())
    ]
    assert absent == []


def test_the_design_page_names_every_layer_and_no_module_that_is_absent():
    page = (PACKAGE.parents[1] / "docs" / "design.md").read_text(encoding="utf-8")
    table = page[page.index("| module | holds |") :].partition("\n\n")[0]
    names = re.findall(r"^\| `([\w/.]+)` \|", table, re.MULTILINE)
    paths = [PACKAGE / (name if name.endswith((".py", "/")) else f"{name}.py") for name in names]
    assert [str(path) for path in paths if not path.exists()] == []
    assert {name.partition("/")[0] for name in names} == set(LAYERS)


def test_modules_import_only_from_the_lines_above():
    assert violations(PACKAGE) == []


def test_no_files_import_each_other_in_a_circle():
    assert cycles(PACKAGE) == []


@pytest.fixture
def toy(tmp_path):
    def write(**files: str) -> Path:
        package = tmp_path / "toy"
        for name, text in {"__init__": "", **files}.items():
            path = package.joinpath(*name.split("__sub__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return package

    return write


def test_the_check_sees_an_import_from_below(toy):
    package = toy(trace="import toy.cli", cli="")
    assert violations(package) == ["trace.py: trace imports toy.cli, from a line below it"]


def test_the_check_sees_imports_in_functions_and_for_types(toy):
    text = "def f():\n    from toy import report\nif TYPE_CHECKING:\n    from toy.report import X\n"
    assert len(violations(toy(graph=text, report="X = 1"))) == 2


def test_the_check_sees_relative_imports(toy):
    assert len(violations(toy(graph__sub__a="from ..cli import run", cli="run = 1"))) == 1


def test_the_check_sees_what_the_recorder_imports(toy):
    text = (
        "import os\nimport numpy\nimport torch\ndef f():\n    import torch\n    import toy.errors\n"
    )
    found = violations(toy(record=text, errors=""))
    assert found == [
        f"record.py: record imports {name}" for name in ("numpy", "torch", "toy.errors")
    ]


def test_the_check_sees_another_trainer_in_an_integration(toy):
    package = toy(integrations__sub__lightning="import lightning\nimport transformers")
    assert violations(package) == ["integrations/lightning.py: integrations imports transformers"]


def test_the_check_sees_a_cycle(toy):
    package = toy(trace__sub__a="from toy.trace import b", trace__sub__b="import toy.trace.a")
    assert cycles(package) == ["trace/a.py -> trace/b.py -> trace/a.py"]
