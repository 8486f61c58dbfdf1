"""The start of the process: Ctrl-C is quiet while the commands are still being loaded."""

from __future__ import annotations


def run() -> int:
    """Run the command line of the process; returns the exit code."""
    try:
        from paceline.cli import main

        return main.run()
    except KeyboardInterrupt:
        return 130
