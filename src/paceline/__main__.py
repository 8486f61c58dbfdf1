"""``python -m paceline``."""

from __future__ import annotations

import sys

from paceline.cli.start import run

if __name__ == "__main__":
    sys.exit(run())
