"""Mitigation of fail-slows: strategies S1 to S4, the planner, and simulated lives of jobs."""
