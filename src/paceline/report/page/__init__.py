"""The parts of the HTML report: what the figures draw, what the text says, and the static files."""
