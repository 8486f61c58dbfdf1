"""Before the run: predict plans, search them, fit the model to measurements."""
