"""Which strategy to use against fail-slows, and when: S1 to S4, the planner, the life of a job."""
