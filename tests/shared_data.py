"""Where the real data lies: ``$PACELINE_SHARED``, or ``shared`` beside the checkout.

Clones of other tools' repositories lie in ``$PACELINE_CLONES``, as ``OWNER+NAME/repo``.
"""

import os
from pathlib import Path

SHARED = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data"
CLONES = Path(os.environ.get("PACELINE_CLONES", SHARED.parent / ".mirror"))
