"""Where the shared data lies: beside the checkout, or where PACELINE_SHARED says."""

import os
from pathlib import Path

SHARED = Path(os.environ.get("PACELINE_SHARED", Path(__file__).absolute().parents[2] / "shared"))
