"""What is sampled: prompts, lengths, correctness; as laws, as a stream of groups, as a fit."""

from dapolab.workload.model import Groups, PromptStream

__all__ = ["Groups", "PromptStream"]
