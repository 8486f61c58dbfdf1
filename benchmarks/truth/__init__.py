"""The benchmark of ``benchmarks/truth.py``: cases, what the product says, what is true, tables."""
