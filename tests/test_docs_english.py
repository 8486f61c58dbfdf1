"""Sentences of the documentation are short, and phrases that read as puzzles stay away."""

import ast
import io
import re
import tokenize
from pathlib import Path

import doc_pages

ROOT = doc_pages.ROOT
#: A build writes these from the code.
_GENERATED = re.compile(r"/_|/reference/(?:commands/|python|exceptions|presets)")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(path for path in sorted(doc_pages.DOCS.rglob("*.md")) if not _GENERATED.search(str(path))),
]
#: Words of a sentence, and how many sentences of the pages may have more.
MOST_WORDS, MOST_LONG = 25, 31
#: The same of the source, as a share.
MOST_WORDS_IN_SOURCE, MOST_LONG_IN_SOURCE = 30, 0.01
PUZZLES = re.compile(r"\bso (?:many|long)\b(?! as)", re.IGNORECASE)

#: No prose: blocks of code, headings, pictures.
_NO_PROSE = re.compile(
    r"^```.*?^```$|^ {4}[^\n]*$|^#[^\n]*$|<!--.*?-->|<picture>.*?</picture>", re.M | re.S
)
_TABLE_ROW = re.compile(r"^ *\|[^\n]*$", re.M)
_CODE, _TARGET = re.compile(r"`[^`\n]*`"), re.compile(r"\]\([^)]*\)")
_PARAGRAPHS = re.compile(r"\n\s*\n|\n(?=\s*[-*\d]+[. ] ?)")
_SENTENCES = re.compile(r"(?<=[.:;!?])\s+(?=[A-Z`*\[(])")


def sentences(text):
    """Those of a page; a span of code is one word, a cell of a table a paragraph."""
    text = _TARGET.sub("]", _CODE.sub("CODE", _NO_PROSE.sub("", text)))
    text = _TABLE_ROW.sub(lambda row: "\n\n" + row[0].replace("|", "\n\n"), text)
    for paragraph in _PARAGRAPHS.split(text):
        yield from _SENTENCES.split(" ".join(paragraph.split()))


def words(sentence):
    return len(re.findall(r"\w[\w’'-]*", sentence))


def test_how_sentences_are_counted():
    text = "# Head\n\nOne `a b` two. Three\nfour.\n\n| a | b c d. E |\n\n- five [six](x y z)\n"
    assert [n for n in map(words, sentences(text)) if n] == [3, 2, 1, 3, 1, 2]


def test_few_sentences_are_long():
    counted = [
        (words(sentence), page.relative_to(ROOT), sentence)
        for page in PAGES
        for sentence in sentences(page.read_text(encoding="utf-8"))
        if words(sentence) > 2
    ]
    long = [entry for entry in counted if entry[0] > MOST_WORDS]
    assert len(counted) > 4000
    assert len(long) <= MOST_LONG, "\n".join(
        f"{n} words in {page}: {sentence[:120]}" for n, page, sentence in sorted(long)[::-1][:20]
    )


def test_no_puzzles():
    files = [*PAGES, *sorted((ROOT / "src").rglob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        for match in PUZZLES.finditer(Path(path).read_text(encoding="utf-8"))
    ]
    assert found == []


#: A clause for a noun at a sentence's start: "What a file holds." A question may begin so.
HEADLESS = re.compile(r"(?:What|Who|Whoever|Whose)\b(?!-if)(?!.*\?)", re.DOTALL)
#: Beside questions, docs may announce a list or a section so: "What you must change:".
_ANNOUNCES = re.compile(r"[^.;]*:?\Z")


def prose(source):
    """Docstrings and comments of a Python source; comment lines that follow each other are one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    block, last = "", None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            if last != (row - 1, column):
                yield block
                block = ""
            block += token.string.lstrip("#: ") + "\n"
            last = row, column
    yield block


def test_prose_of_a_source():
    source = '"""One."""\n#: Two\n#: three.\nx = 1  # four\ndef f():\n    """Five."""\n'
    assert [text.strip() for text in prose(source) if text] == [
        "One.",
        "Five.",
        "Two\nthree.",
        "four",
    ]


#: The sections of a docstring whose indented lines are entries, and where an entry begins.
_SECTION = re.compile(
    r"^(?:Args|Attributes|Returns|Yields|Raises):\n((?:(?: {4}[^\n]*)?\n)+)", re.M
)
_ENTRY = re.compile(r"^ {4}(?=\S[^\n:]*: )", re.M)


def with_entries(text):
    """The text of a docstring with the entries of its sections as paragraphs of their own."""
    return _SECTION.sub(
        lambda match: "\n" + re.sub("^ +", "", _ENTRY.sub("\n", match[1]), flags=re.M),
        text + "\n",
    )


def test_entries_are_sentences():
    text = "One.\n\nArgs:\n    a: two three\n        four.\n    b, c: five.\n\n    x = 1\n"
    assert [n for n in map(words, sentences(with_entries(text))) if n] == [1, 4, 3, 2]


def test_few_sentences_of_the_source_are_long():
    counted = [
        (words(sentence), path.relative_to(ROOT), sentence)
        for path in sorted((ROOT / "src").rglob("*.py"))
        for text in prose(path.read_text(encoding="utf-8"))
        for sentence in sentences(with_entries(text))
        if words(sentence) > 2
    ]
    long = [entry for entry in counted if entry[0] > MOST_WORDS_IN_SOURCE]
    assert len(counted) > 10_000
    assert len(long) <= MOST_LONG_IN_SOURCE * len(counted), "\n".join(
        f"{n} words in {path}: {sentence[:120]}" for n, path, sentence in sorted(long)[::-1][:20]
    )


def test_no_headless_sentences():
    found = [
        f"{path.relative_to(ROOT)}: {sentence[:80]}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for text in prose(path.read_text(encoding="utf-8"))
        for sentence in sentences(text)
        if HEADLESS.match(sentence)
    ]
    found += [
        f"{page.relative_to(ROOT)}: {sentence[:80]}"
        for page in PAGES
        for sentence in sentences(page.read_text(encoding="utf-8"))
        if HEADLESS.match(text := sentence.lstrip("-*0123456789. ")) and not _ANNOUNCES.match(text)
    ]
    assert found == []
