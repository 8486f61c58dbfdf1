"""Online detection: when a job became slow, and how certain that is."""
