"""The monitor of running jobs: servers that receive step times and traces from jobs."""
