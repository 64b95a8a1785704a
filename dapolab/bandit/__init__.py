"""Toy policies small enough for an exact answer, trained with the very code of the objective.

A bandit says which way a loss, a clip or a filter pushes a policy and how hard; it says nothing of
wall-clock or of big models. Thousands of seeds are one leading replica dimension, and the tokens of
an answer are multiplicities in the mask, so that an answer of a hundred tokens costs two places.
"""

from dapolab.bandit.answers import Answers, Bandit, Outcomes
from dapolab.bandit.arms import ArmBandit
from dapolab.bandit.correction import GradientError, gradient_error, gradient_estimates
from dapolab.bandit.curves import Curves, curve_table, final_estimates
from dapolab.bandit.drift import first_drift
from dapolab.bandit.flow import Flow, population_flow, push_without_signal
from dapolab.bandit.gradients import GradientLaw, expected_gradient, sampled_gradients
from dapolab.bandit.hazard import HazardBandit
from dapolab.bandit.hazard_exact import expected_hazard_gradient
from dapolab.bandit.modes import parse_mode
from dapolab.bandit.run import train
from dapolab.bandit.settings import Mode, Training
from dapolab.bandit.studies import STUDIES, Study, find_study
from dapolab.bandit.three_paths import Effects, three_paths
from dapolab.bandit.together import train_together

__all__ = [
    "STUDIES",
    "Answers",
    "ArmBandit",
    "Bandit",
    "Curves",
    "Effects",
    "Flow",
    "GradientError",
    "GradientLaw",
    "HazardBandit",
    "Mode",
    "Outcomes",
    "Study",
    "Training",
    "curve_table",
    "expected_gradient",
    "expected_hazard_gradient",
    "final_estimates",
    "find_study",
    "first_drift",
    "gradient_error",
    "gradient_estimates",
    "parse_mode",
    "population_flow",
    "push_without_signal",
    "sampled_gradients",
    "three_paths",
    "train",
    "train_together",
]
