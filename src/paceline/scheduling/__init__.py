"""Queues of jobs on a shared cluster, replayed under policies."""
