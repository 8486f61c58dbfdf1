"""The parser of the command line: an unknown option is an error of the command that it follows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any


class CommandParser(argparse.ArgumentParser):
    """Parser of ``paceline`` or of a command, which reports unknown words itself.

    argparse passes the unknown words of a command up, so that the usage of all commands is printed.
    Parsers of commands are of this class, too, since argparse makes them of their parent's class.
    """

    def parse_known_args(  # type: ignore[override]  # argparse has two overloads
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; exit with the usage of this command if a word is left.

        Args:
            args: the words; None: those of the process.
            namespace: where values are stored; None: a new one.
        """
        values, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._explain(unknown))
        return values, unknown

    def _explain(self, unknown: Sequence[str]) -> str:
        """The unknown words, with the option nearest to the first one."""
        text = f"unrecognized arguments: {' '.join(unknown)}"
        name = unknown[0].partition("=")[0]
        if not name.startswith("-"):
            return text
        near = get_close_matches(name, list(self._option_string_actions), n=1)
        advice = f"did you mean {near[0]}? " if near else ""
        return f"{text} ({advice}{self.prog} --help lists the options)"
