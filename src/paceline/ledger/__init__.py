"""Goodput: where a job's wall time went."""

from paceline.ledger.ledger import Ledger, goodput

__all__ = ["Ledger", "goodput"]
