"""Reports of single ranks from their PyTorch profiles; S would need the whole job."""

from paceline.ranks.report import RankReport, RanksReport, StepReport, rank_report

__all__ = ["RankReport", "RanksReport", "StepReport", "rank_report"]
