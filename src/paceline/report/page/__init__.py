"""The parts of the HTML report: data of the figures, sentences of the text, and static files."""
