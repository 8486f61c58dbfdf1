"""Telemetry of GPUs: clocks, power, throttling, errors, from nvidia-smi or Prometheus."""
