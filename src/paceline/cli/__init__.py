"""The command line: one file per command; each parses, calls, prints, and returns an exit code."""
