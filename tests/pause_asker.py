"""Asks for a pause and prints what came of it: a process of its own, so that it can be killed."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from paceline.errors import PauseError
from paceline.pause.asker import Times, pause

try:
    result = asdict(pause(Path(sys.argv[1]), Times(**json.loads(sys.argv[2])), margin=1))
except PauseError as error:
    result = {"error": str(error)}
print(json.dumps(result))
