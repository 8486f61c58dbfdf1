"""Online detection of slow jobs: onsets, their certainty, and the slow ranks."""
