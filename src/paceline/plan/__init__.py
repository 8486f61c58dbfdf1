"""Plans before a run: prediction, search, and calibration of the model by measurements."""
