"""When to do what about fail-slows: strategies S1 to S4, the planner, the life of a job."""
