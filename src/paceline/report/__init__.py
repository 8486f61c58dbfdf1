"""Finished results -> terminal, JSON, CSV, Perfetto. Nothing is computed here but what is drawn."""
