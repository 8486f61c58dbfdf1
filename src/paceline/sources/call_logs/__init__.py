"""Logs of collective calls: tables, NCCL Inspector, PyTorch's flight recorder."""
