"""What is sampled: prompts, lengths, correctness; as laws, as a stream of groups, as a fit."""

from dapolab.workload.difficulty import (
    mixed_probability_given,
    mixed_share_of_counts,
    pass_rate_for,
    pass_rate_law,
)
from dapolab.workload.lengths import LengthLaw, length_law
from dapolab.workload.marginals import Marginals, marginals, mixed_probability, survival
from dapolab.workload.model import Groups, PromptStream

__all__ = [
    "Groups",
    "LengthLaw",
    "Marginals",
    "PromptStream",
    "length_law",
    "marginals",
    "mixed_probability",
    "mixed_probability_given",
    "mixed_share_of_counts",
    "pass_rate_for",
    "pass_rate_law",
    "survival",
]
