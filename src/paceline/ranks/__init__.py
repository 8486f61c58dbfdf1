"""Reports of some ranks of a job, from their PyTorch profiles: no whole job, so no S."""

from paceline.ranks.report import RankReport, RanksReport, StepReport, rank_report

__all__ = ["RankReport", "RanksReport", "StepReport", "rank_report"]
