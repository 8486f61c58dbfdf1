"""The monitor of running jobs: servers that take in what the jobs say of themselves."""
