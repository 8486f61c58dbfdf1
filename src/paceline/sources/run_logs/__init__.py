"""What a job did when, in logs of trainers and of goodput tools: starts, steps, pauses."""
