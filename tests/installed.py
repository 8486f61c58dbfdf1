"""Where the Paceline under test lies: a source tree's ``src``, or the ``site-packages`` of a wheel."""

from pathlib import Path

import paceline

#: For the PYTHONPATH of a process that a test starts.
PACKAGES = str(Path(paceline.__file__).parents[1])
