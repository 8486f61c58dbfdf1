"""Reads the package's start-up file as Python does where it is installed into site-packages."""

import site
from pathlib import Path

site.addsitedir(str(Path(__file__).parents[3] / "src"))
