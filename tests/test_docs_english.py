"""Sentences of the documentation are short, and phrases that read as puzzles stay away."""

import re

import pytest

import doc_pages
import source_texts

ROOT = doc_pages.ROOT
#: A build writes these from the code.
_GENERATED = re.compile(r"/_|/reference/(?:commands/|python|exceptions|presets)")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(path for path in sorted(doc_pages.DOCS.rglob("*.md")) if not _GENERATED.search(str(path))),
]
#: Words of a sentence, and how many sentences of the pages may have more.
MOST_WORDS, MOST_LONG = 25, 31
#: The share of the docstrings' and comments' sentences that may have more.
MOST_LONG_IN_SOURCE = 0.01
PUZZLES = re.compile(r"\bso (?:many|long)\b(?! as)", re.IGNORECASE)
#: Clauses for nouns: "what it has", and how many the sources may have.
CLAUSES, MOST_CLAUSES = re.compile(r"\bwhat (?:is|it)\b", re.IGNORECASE), 8
#: The same on pages, where a question may ask so.
PAGE_CLAUSES, MOST_PAGE_CLAUSES = re.compile(r"\bwhat (?:is|it|they|was|are)\b", re.IGNORECASE), 4
#: A clause for a noun at a sentence's start: "What a file holds." A question may begin so.
HEADLESS = re.compile(r"(?:What|Who|Whoever|Whose)\b(?!-if)(?!.*\?)", re.DOTALL)
#: Beside questions, docs may announce a list or a section so: "What you must change:".
_ANNOUNCES = re.compile(r"[^.;]*:?\Z")
#: Documents made earlier hold these sentences word for word.
_FIXED = ("What rests on transfers is doubtful.",)

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


@pytest.fixture(scope="module")
def sources():
    """Path -> texts, of all sources with prose."""
    return {
        path.relative_to(ROOT): source_texts.of_file(path)
        for path in sorted((ROOT / "src").rglob("*.*"))
        if path.suffix in source_texts.SUFFIXES
    }


def long_sentences(sources):
    """(words, path, sentence) of the sentences of docstrings and comments; those with too many."""
    counted = [
        (words(sentence), path, sentence)
        for path, texts in sources.items()
        for text in (*map(with_entries, texts.docstrings), *texts.comments)
        for sentence in sentences(text)
        if words(sentence) > 2
    ]
    return counted, [entry for entry in counted if entry[0] > MOST_WORDS]


def puzzles(sources, pattern=PUZZLES):
    return [
        f"{path}: {text[max(0, match.start() - 40) : match.end() + 40]}"
        for path, texts in sources.items()
        for text in texts.all
        for match in pattern.finditer(text)
    ]


def headless(sources):
    return [
        f"{path}: {sentence[:80]}"
        for path, texts in sources.items()
        for text in texts.all
        for sentence in sentences(text)
        if HEADLESS.match(sentence) and not sentence.startswith(_FIXED)
    ]


def test_few_sentences_of_the_source_are_long(sources):
    counted, long = long_sentences(sources)
    assert len(counted) > 15_000
    assert len(long) <= MOST_LONG_IN_SOURCE * len(counted), "\n".join(
        f"{n} words in {path}: {sentence[:120]}" for n, path, sentence in sorted(long)[::-1][:20]
    )


def test_no_puzzles(sources):
    pages = {
        page.relative_to(ROOT): source_texts.Texts(comments=[page.read_text(encoding="utf-8")])
        for page in PAGES
    }
    assert puzzles(pages | sources) == []


def test_few_clauses_stand_for_nouns(sources):
    found = puzzles(sources, CLAUSES)
    assert len(found) <= MOST_CLAUSES, "\n".join(found)


def test_few_clauses_stand_for_nouns_on_pages():
    found = [
        f"{page.relative_to(ROOT)}: {sentence[:80]}"
        for page in PAGES
        for sentence in sentences(page.read_text(encoding="utf-8"))
        if PAGE_CLAUSES.search(sentence) and not sentence.endswith("?")
    ]
    assert len(found) <= MOST_PAGE_CLAUSES, "\n".join(found)


def test_no_headless_sentences(sources):
    assert headless(sources) == []


def test_no_headless_sentences_in_the_documentation():
    found = [
        f"{page.relative_to(ROOT)}: {sentence[:80]}"
        for page in PAGES
        for sentence in sentences(page.read_text(encoding="utf-8"))
        if HEADLESS.match(text := sentence.lstrip("-*0123456789. ")) and not _ANNOUNCES.match(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("docstring.py", '"""A module.\n\n{}\n"""\n'),
        ("method.py", 'class A:\n    # A comment.\n    def f(self):\n        """{}"""\n'),
        ("comment.py", "x = 1\n#: {}\ny = 2\n"),
        ("inline.py", 'x = "#"  # {}\n'),
        ("raised.py", 'raise ValueError(f"{{x!r}} is wrong. {}")\n'),
        ("joined.py", 'print(\n    "All is well. "\n    "{}"\n)\n'),
        ("page.html", "<p>{{{{ n }}}} ranks.</p><p>{}</p>\n"),
        ("part.html", '<p>{{% if n %}}<b class="bad">Bad.</b> {}{{% endif %}}</p>\n'),
        ("page.js", 'const label = "one"; // {}\n'),
        ("text.js", "const label = `${{n}} ranks. {}`;\n"),
        ("code.c", "int n; /* A number. {} */\n"),
        ("line.h", "// {}\nint n;\n"),
        ("told.c", 'fprintf(stderr, "%s failed. {}\\n", name);\n'),
    ],
)
def test_a_planted_sentence_is_found(tmp_path, name, source):
    def planted(sentence):
        (tmp_path / name).write_text(source.format(sentence), encoding="utf-8")
        return {name: source_texts.of_file(tmp_path / name)}

    good = planted("Each file holds the times of one rank.")
    assert (puzzles(good), puzzles(good, CLAUSES), headless(good)) == ([], [], [])
    assert len(puzzles(planted("A step has so many ranks."))) == 1
    assert len(puzzles(planted("Each rank waits so long."))) == 1
    assert puzzles(planted("Each rank waits so long as others work.")) == []
    assert len(puzzles(planted("Each rank says what it has done."), CLAUSES)) == 1
    for sentence in (
        "What the file holds now.",
        "Who waits for the other.",
        "Whose turn ends goes last.",
    ):
        assert len(headless(planted(sentence))) == 1, sentence
    assert headless(planted("Whose turn is it now?")) == []
    long = planted(" ".join(["Ranks", *["wait"] * MOST_WORDS]) + ".")
    is_message = name in ("raised.py", "joined.py", "text.js", "told.c") or name.endswith(".html")
    assert len(long_sentences(long)[1]) == (not is_message)


def test_prose_of_a_source():
    texts = source_texts.of_source(
        '"""One."""\n#: Two\n#: three.\nx = 1  # four\ndef f():\n    """Five."""\n'
        'y = "A # B"\nz = ("one two three", "four {x} five "\n    f"six {y} seven")\n'
    )
    assert texts.docstrings == ["One.", "Five."]
    assert texts.comments == ["Two\nthree.", "four"]
    assert texts.messages == ["four X five six X seven"]
