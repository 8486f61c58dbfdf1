"""Pauses of a running job at one collective: docs/pause.md has the protocol."""
