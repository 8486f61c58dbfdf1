"""Diagnosis: the causes of a job's slowness, their places, their costs and their confidence."""

from paceline.diagnose.arrangement import communication
from paceline.diagnose.communication import Communication, Exposure
from paceline.diagnose.data_waits import step_to_step_s, usual_step_s, waits_in_steps_s
from paceline.diagnose.diagnosis import MIN_OF_STEP, Diagnosis, diagnose
from paceline.diagnose.finding import CAUSES, Finding
from paceline.diagnose.microbatches import forward_backward_correlation
from paceline.diagnose.waterfall import Drop, Waterfall, waterfall

__all__ = [
    "CAUSES",
    "MIN_OF_STEP",
    "Communication",
    "Diagnosis",
    "Drop",
    "Exposure",
    "Finding",
    "Waterfall",
    "communication",
    "diagnose",
    "forward_backward_correlation",
    "step_to_step_s",
    "usual_step_s",
    "waits_in_steps_s",
    "waterfall",
]
