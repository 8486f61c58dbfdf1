"""Workloads, plans and machines, and the costs of plans: operators, seconds, bytes."""
