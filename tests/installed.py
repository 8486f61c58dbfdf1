"""Where the Paceline under test lies: in ``src``, or where a wheel was installed."""

from pathlib import Path

import paceline

#: For the PYTHONPATH of a process that a test starts.
PACKAGES = str(Path(paceline.__file__).parents[1])
