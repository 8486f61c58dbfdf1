"""The JSON Schema of the document. ``python -m paceline.results.schema`` prints it."""

from __future__ import annotations

import json
import sys
from typing import Any

from paceline.results.document import SCHEMA, JobReport
from paceline.results.keys import KEYS
from paceline.results.record import record_schema


def json_schema() -> dict[str, Any]:
    """The schema, made from the keys; later versions may add keys."""
    schema = record_schema(JobReport, KEYS)
    properties = {
        "schema": {"description": "version of this format", "const": SCHEMA},
        **schema["properties"],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "result.json",
        "description": "The report of a job, as `paceline analyze --json` writes it",
        **schema,
        "properties": properties,
        "required": ["schema", *schema["required"]],
    }


def text() -> str:
    """The schema in the form of its file."""
    return json.dumps(json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
