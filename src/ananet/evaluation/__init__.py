"""Evaluation: predictions, scores, tables, plots, speed, and a look inside networks."""

from ananet.evaluation.pairs import MatchSettings
from ananet.evaluation.predictions import Origin, Prediction, Predictions, read_predictions, write_predictions
from ananet.evaluation.reports import report, write_scores
from ananet.evaluation.runner import Evaluation, evaluate
from ananet.evaluation.scoring import PoseSettings, PrunerScores

__all__ = [
    "Evaluation",
    "MatchSettings",
    "Origin",
    "PoseSettings",
    "Prediction",
    "Predictions",
    "PrunerScores",
    "evaluate",
    "read_predictions",
    "report",
    "write_predictions",
    "write_scores",
]
