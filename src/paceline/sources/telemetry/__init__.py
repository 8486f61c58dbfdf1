"""What GPUs say of themselves: clocks, power, throttling, errors, from nvidia-smi or Prometheus."""
