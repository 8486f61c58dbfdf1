"""Warnings about a model, whatever its plan."""

from __future__ import annotations

from paceline.model.llm import LLM


def model_warnings(llm: LLM) -> list[str]:
    """Parts of the model that are not counted, and samples that are too long for it."""
    warnings = []
    if llm.left_out:
        warnings.append(f"{llm.name} is counted without {llm.left_out}")
    if 0 < llm.context < llm.seq_len:
        source = "its learned table" if llm.positions == "learned" else "its config"
        warnings.append(
            f"a sample of {llm.seq_len:,} tokens is longer than {llm.name} allows: {source} has "
            f"{llm.context:,} positions"
        )
    return warnings
