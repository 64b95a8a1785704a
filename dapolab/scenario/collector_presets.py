"""Collection policies under the names of the frameworks that run them: settings, as data."""

from dataclasses import dataclass

from dapolab.scenario.collector_streams import Chunked, Replenish, Streaming
from dapolab.scenario.collector_waves import FilterNoRefill, Replace, Rounds
from dapolab.scenario.config import Config


@dataclass(frozen=True)
class Preset:
    """A policy as one framework ships it; ``about`` says what is special, with the source."""

    config: Config
    about: str


PRESETS: dict[str, Preset] = {
    "tinker": Preset(
        FilterNoRefill(keep_one=True),
        "tinker-cookbook remove_constant_reward_groups (rl/data_processing.py:235): one wave, "
        "constant groups leave, one is kept where all are constant.",
    ),
    "nemo_rl": Preset(
        Rounds(gen_multiplier=1.0, max_num_gen_batches=10, rounds_past_max=1, judge="sample"),
        "NeMo RL (grpo.py:1699-1828) with its default leave-one-out baseline: rounds of "
        "B·batch_multiplier prompts, single responses whose peers all agree are dropped (1 right "
        "of 8 loses the odd one and keeps 7), B·G responses are wanted, 11 rounds are generated "
        "before it raises.",
    ),
    "nemo_rl_dapo": Preset(
        Rounds(gen_multiplier=3.0, max_num_gen_batches=10, rounds_past_max=1),
        "NeMo RL's DAPO recipes: no leave-one-out (so whole groups), batch_multiplier 3.",
    ),
    "skyrl_filter": Preset(
        Rounds(gen_multiplier=1.0, max_num_gen_batches=30),
        "SkyRL dynamic_sampling.type = filter (trainer_utils.py:392-620): rounds of the train "
        "batch, at most 30, then RuntimeError.",
    ),
    "skyrl_replace": Preset(
        Replace(),
        "SkyRL dynamic_sampling.type = replace: good groups are copied over the bad where more "
        "than 30 % are good.",
    ),
    "ms_swift": Preset(
        Rounds(
            gen_multiplier=1.0,
            max_num_gen_batches=3,
            rounds_past_max=1,
            examine_last=False,
            at_max="original",
        ),
        "ms-swift dynamic_sample (grpo_trainer.py:644-694): the batch and at most "
        "max_resample_times = 3 resamples; the last one is generated and never examined, then the "
        "original batch is trained, degenerate groups and all, and the good ones are thrown away.",
    ),
    "ms_swift_ray": Preset(
        Rounds(gen_multiplier=1.0, max_num_gen_batches=3, rounds_past_max=1, at_max="original"),
        "ms-swift under Ray: as ms_swift, but all four rounds are examined.",
    ),
    "openrlhf_968": Preset(
        Rounds(gen_multiplier=1.0, max_num_gen_batches=0, surplus="carry"),
        "OpenRLHF pull 968: rounds of the rollout batch, experiences beyond the train batch stay "
        "in the replay buffer and are used in the next step.",
    ),
    "roll": Preset(
        Replenish(at_data_end="train"),
        "ROLL generate_opt_level 1 (generate_scheduler.py ReplayBuffer): running + completed = B.",
    ),
    "roll_extra": Preset(
        Replenish(min_in_flight=16, at_data_end="train"),
        "ROLL with is_use_additional_prompts: at least max_additional_running_prompts = 16 groups "
        "run until the batch is full, then the rest is aborted.",
    ),
    "slime": Preset(Chunked(), "slime with dynamic sampling, over_sampling_batch_size = B."),
    "slime_fallback": Preset(
        Chunked(fallback=True),
        "slime's check_reward_nonzero_std_with_fallback (keep_when_insufficient): a reject is kept "
        "when accepted + in flight ≤ B; with over_sampling_batch_size = B nothing is ever dropped.",
    ),
    "slime_partial": Preset(
        Chunked(leftovers="resume"),
        "slime with partial_rollout (APRIL): groups cut at the end go back to the data buffer and "
        "are resumed first in the next step.",
    ),
    "verl_partial": Preset(
        Streaming(slots_per_target=1, filter=False, leftovers="resume", surplus="carry", max_age=9),
        "The verl recipe partial_rollout (prompt_manager.py): B prompts always in flight, stop at "
        "B done; those cut resume first, those beyond B are trained first in the next step; a "
        "prompt whose versions span 10 is dropped. No filter.",
    ),
    "open_instruct": Preset(
        Streaming(slots_per_target=8, leftovers="resume", surplus="carry", max_age=8),
        "open-instruct active_sampling (data_loader.py:1006-1184): each result replenishes one "
        "prompt, async_steps = 8 batches in flight, results older than that are dropped. Here "
        "generation pauses while the learner works.",
    ),
}
