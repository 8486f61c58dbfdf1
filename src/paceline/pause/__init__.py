"""A running job stops at one collective and goes on: docs/pause.md has the protocol."""
