"""Workloads, plans, machines, and what they cost: operators, seconds, bytes."""
