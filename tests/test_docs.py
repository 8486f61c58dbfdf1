"""The pages of docs/: each is reached from the index, each link leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: What `make docs` writes from the code (docs/_ext/paceline_reference.py).
GENERATED = (
    *("reference/commands/", "reference/python.md"),
    *("reference/exceptions.md", "reference/presets.md"),
)


def is_generated(path: Path) -> bool:
    return path.is_relative_to(DOCS) and path.relative_to(DOCS).as_posix().startswith(GENERATED)


PAGES = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if not is_generated(path) and not {"_build", "_gallery"} & set(path.parts)
]
TOP = [
    ROOT / name
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "CODE_OF_CONDUCT.md",
    )
]


def prose(path: Path) -> str:
    """The page without its blocks and spans of code."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"(?<=\n\n)(?: {4}.*\n|\n)+", "\n", text)
    return re.sub(r"`[^`\n]+`", "CODE", text)


def links(path: Path) -> list[str]:
    """Targets of the page's links and pictures that are no address."""
    targets = re.findall(r"\]\(([^()\s]+(?:\([^()]*\))?)\)", prose(path))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(path: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+?)\s*$", text, flags=re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", [*TOP, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path):
    dead = []
    for link in links(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if is_generated(target):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_page_is_reached_from_the_index():
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        path = waiting.pop()
        if path in reached or path not in PAGES:
            continue
        reached.add(path)
        waiting += [(path.parent / link.partition("#")[0]).resolve() for link in links(path)]
    assert set(PAGES) - reached == set()


def test_every_page_is_in_one_table_of_contents():
    entries = []
    for path in PAGES:
        for block in re.findall(
            r"^```\{toctree\}\n(.*?)^```$", path.read_text("utf-8"), re.M | re.S
        ):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            entries += [(path.parent / f"{name}.md").resolve() for name in names]
    kept = [path for path in entries if not is_generated(path)]
    assert sorted(kept) == sorted(path for path in PAGES if path != DOCS / "index.md")


def test_files_that_the_code_names_exist():
    named = set()
    for folder in ("src", "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            named |= set(re.findall(r"\bdocs/[a-z/-]+\.(?:md|json)", path.read_text("utf-8")))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_changelog_begins_with_what_users_must_change():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    release = re.split(r"^## ", text, flags=re.M)[1]
    parts = re.split(r"^### (.+)$", release, flags=re.M)
    assert parts[1:6:2] == ["What you must change", "Highlights", "Added"]
    must, highlights = parts[2], parts[4]
    assert 5 <= len(re.findall(r"^- ", must, re.M)) <= 15
    assert len(re.findall(r"^\d+\. ", highlights, re.M)) == 10
    assert set(parts[5::2]) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed"}
