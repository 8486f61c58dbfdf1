"""The documents of the monitor."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def told(name):
    return (DOCS / name).read_text()


def blocks(name):
    """The YAML files of a document, by the name in their first line."""
    return dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", told(name), re.DOTALL))
