"""A comparison as text, JSON and a page."""

from paceline.report.comparison.mapping import dumps, to_mapping
from paceline.report.comparison.page import page_writer
from paceline.report.comparison.terminal import comparison_lines, refusal_lines

__all__ = ["comparison_lines", "dumps", "page_writer", "refusal_lines", "to_mapping"]
