"""The prose of sources: docstrings, comments, messages to users, texts of pages.

Regular expressions find it, some times faster than Python's own tokenizer.
"""

import dataclasses
import inspect
import re

#: Sources of these languages have prose.
SUFFIXES = (".py", ".js", ".html", ".c", ".h")
#: Fewest words of a string that is a message.
MESSAGE_WORDS = 4

_STRING = r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
_PYTHON = re.compile(
    r"(?P<comment>#[^\n]*)|(?P<block>\"{3}.*?(?<!\\)\"{3}|'{3}.*?(?<!\\)'{3})"
    rf"|(?P<string>{_STRING})",
    re.DOTALL,
)
_JAVASCRIPT = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<block>`(?:\\.|[^`\\])*`)" + rf"|(?P<string>{_STRING})",
    re.DOTALL,
)
_C = re.compile(
    rf"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<block>(?!))|(?P<string>{_STRING})", re.DOTALL
)
#: Between strings that form one: only space, the prefix of the second, or a plus sign.
_SAME_MESSAGE = re.compile(r"\s*\+?\s*[rRbBfF]{0,2}\Z")
_COMMENT_MARKS = re.compile(r"^[ \t]*(?:#[: ]*|//+|/\*+|\*(?!/))[ \t]?|[ \t]*\*/$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\$?\{[^{}]*\}|%[-+0-9.l]*[a-z]\b")
_MARKUP = re.compile(
    r"(?P<away><(script|style|svg)\b.*?</\2>|<!--.*?-->|\{[%#].*?[%#]\})"
    r"|(?P<value>\{\{.*?\}\})|(?P<inline></?(?:a|abbr|b|code|em|i|kbd|span|strong|sub|sup|var)\b[^>]*>)"
    r"|(?P<tag><[^>]*>)",
    re.DOTALL,
)


@dataclasses.dataclass
class Texts:
    """The prose of a source; strings of few words are no messages."""

    docstrings: list[str] = dataclasses.field(default_factory=list)
    comments: list[str] = dataclasses.field(default_factory=list)
    messages: list[str] = dataclasses.field(default_factory=list)

    @property
    def all(self):
        return [*self.docstrings, *self.comments, *self.messages]


def of_file(path):
    """The texts of a Python, C or JavaScript source, or of a template of a page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        return of_page(source)
    return of_source(source, {".py": _PYTHON, ".js": _JAVASCRIPT}.get(path.suffix, _C))


def of_page(source):
    """The texts of a template; each value that a program fills in is one word."""

    def plain(match):
        if match["value"]:
            return "X"
        return " " if match["inline"] else "\n\n"

    return Texts(
        messages=[text for text in _MARKUP.sub(plain, source).split("\n\n") if text.strip()]
    )


def of_source(source, language=_PYTHON):
    """The texts of a source; consecutive comment lines form one text, as do joined strings."""
    texts = Texts()
    message, code, end, column_before = "", "", 0, None
    for match in language.finditer(source):
        between, end = source[end : match.start()], match.end()
        code = between.strip()[-1:] or code
        column = match.start() - source.rfind("\n", 0, match.start())
        if match["comment"]:
            text = _COMMENT_MARKS.sub("", match[0])
            if column == column_before and between.count("\n") == 1 and not between.strip():
                texts.comments[-1] += "\n" + text
            else:
                texts.comments.append(text)
            column_before = column
            continue
        column_before = None
        if not _SAME_MESSAGE.match(between):
            _add_message(texts, message)
            message = ""
        if language is _PYTHON and match["block"] and code in ("", ":"):
            texts.docstrings.append(inspect.cleandoc(match[0][3:-3]))
        else:
            message += match[0].strip("\"'`")
        code = '"'
    _add_message(texts, message)
    return texts


def _add_message(texts, message):
    text = _PLACEHOLDER.sub("X", message).replace("\\n", "\n")
    if len(re.findall(r"\b[A-Za-z]{2,}\b", text)) >= MESSAGE_WORDS:
        texts.messages.append(text)
