"""Where the real data lies: ``$PACELINE_SHARED``, or ``shared`` beside the checkout."""

import os
from pathlib import Path

SHARED = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data"
