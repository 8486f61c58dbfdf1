"""Outputs of finished results: terminal, JSON, CSV, Perfetto. Only drawings are computed here."""
