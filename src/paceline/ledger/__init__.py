"""Goodput: the uses of a job's wall time."""

from paceline.ledger.ledger import Ledger, goodput

__all__ = ["Ledger", "goodput"]
