"""The size of a model, in words."""

from __future__ import annotations

from paceline.model.llm import LLM
from paceline.units import parameter_count


def model_size(llm: LLM) -> str:
    """``14.8B parameters``, ``30.5B parameters, 3.35B active``: all, and those of one token."""
    text = f"{parameter_count(llm.parameters)} parameters"
    if llm.moe is not None:
        text += f", {parameter_count(llm.active_parameters)} active"
    return text
