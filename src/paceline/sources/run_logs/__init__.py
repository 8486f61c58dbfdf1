"""Times of a job in logs of trainers and of goodput tools: starts, steps, pauses."""
