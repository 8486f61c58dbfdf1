"""The parser of the command line: errors of usage belong to the command that they follow."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


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

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among the choices, with all of these."""
        choices = list(action.choices or ())
        if action.choices is None or value in choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            near = get_close_matches(str(value), choices, n=1)
            advice = f"did you mean {near[0]}? " if near else ""
            text = f"there is no such command: {value!r} ({advice}{self.prog} --help lists them)"
            raise argparse.ArgumentError(action, text)
        names = ", ".join(map(str, choices[:-1])) + " or " * (len(choices) > 1) + str(choices[-1])
        raise argparse.ArgumentError(action, f"must be {names}, not {value!r}")

    def error(self, message: str) -> NoReturn:
        """Exit with 2. The usage says nothing more of an argument that the message names."""
        if message.startswith("argument "):
            self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")
        super().error(message)

    def _explain(self, unknown: Sequence[str]) -> str:
        """The unknown words, with the option nearest to the first one."""
        text = f"unrecognized arguments: {' '.join(unknown)}"
        name = unknown[0].partition("=")[0]
        if not name.startswith("-"):
            return text
        near = get_close_matches(name, list(self._option_string_actions), n=1)
        advice = f"did you mean {near[0]}? " if near else ""
        return f"{text} ({advice}{self.prog} --help lists the options)"
