"""verl's keys, from the first release's ``timing/gen`` to 0.9 (``metric_utils.py``).

Under dynamic sampling almost every key is of the kept, trimmed batch; only the timers of the step
cover all waves, and those of the agent loop the last wave alone.
"""

import pandas as pd

from dapolab.logs.vocabulary import Key, Mapped, Vocabulary, is_whole

MESSAGE = "message/"  # read from the lines between two steps
_BATCHES = "train/num_gen_batches"
_FILTER_KEYS = (
    _BATCHES,
    "message/num_gen_batches",
    "training/filter_groups/evicted_samples",
    "training/filter_groups/discarded_surplus_samples",
)
_KEPT = "the trained batch: kept groups only where a filter is on"
_GEN = (
    "sum over all waves of the step, discarded groups included; in V1 the time blocked on the "
    "replay buffer, a multiple of its poll, submission not counted"
)
_STEP = "with weight update and checkpoint; validation is in it before August 2025 (6469be213)"

KEYS = (
    Key("timing_s/gen", ("time/rollout_seconds",), _GEN),
    Key("timing/gen", ("time/rollout_seconds",), _GEN),
    Key("timing_s/step", ("time/step_seconds",), _STEP),
    Key("timing/step", ("time/step_seconds",), _STEP),
    Key(
        "timing_s/reward",
        ("time/reward_seconds",),
        "near 0 where the agent loop scores: then scoring is inside timing_s/gen",
    ),
    Key("timing/reward", ("time/reward_seconds",)),
    Key("timing_s/old_log_prob", ("time/old_logprob_seconds",)),
    Key("timing/old_log_prob", ("time/old_logprob_seconds",)),
    Key("timing_s/ref", ("time/reference_seconds",)),
    Key("timing/ref", ("time/reference_seconds",)),
    Key("timing_s/values", ("time/values_seconds",)),
    Key("timing/values", ("time/values_seconds",)),
    Key("timing_s/adv", ("time/advantage_seconds",)),
    Key("timing/adv", ("time/advantage_seconds",)),
    Key("timing_s/update_critic", ("time/critic_update_seconds",)),
    Key("timing/update_critic", ("time/critic_update_seconds",)),
    Key("timing_s/update_actor", ("time/update_seconds",)),
    Key("timing/update_actor", ("time/update_seconds",)),
    Key("timing_s/update_weights", ("time/sync_seconds",)),
    Key("timing_s/timing_s/param_sync", ("time/sync_seconds",), "fully_async's weight sync"),
    Key("timing_s/testing", ("time/validation_seconds",)),
    Key("timing/testing", ("time/validation_seconds",)),
    Key("timing_s/save_checkpoint", ("time/checkpoint_seconds",)),
    Key("timing/save_checkpoint", ("time/checkpoint_seconds",)),
    Key(
        "timing_s/agent_loop/generate_sequences/mean",
        ("time/request_mean_seconds",),
        "the last wave of the step only, whatever timing_s/gen sums",
    ),
    Key("timing_s/agent_loop/generate_sequences/max", ("time/request_max_seconds",)),
    Key("timing_s/agent_loop/generate_sequences/min", ("time/request_min_seconds",)),
    Key(
        "timing_s/agent_loop/slowest/response_length",
        (),
        "of the slowest response of the last wave, a count of tokens despite its name",
    ),
    Key(_BATCHES, ("rollout/waves",), "logged by the DAPO trainer alone; 1 where no filter is on"),
    Key(
        MESSAGE + "num_gen_batches",
        ("rollout/waves",),
        "from the lines «Keep generating»; steps of one wave print none",
    ),
    Key(MESSAGE + "num_prompt_in_batch", (), "groups kept before the last wave of the step"),
    Key("response_length/mean", ("trained/mean_completion_tokens", "bias/length_trained"), _KEPT),
    Key("response_length/max", ("trained/max_completion_tokens",), _KEPT),
    Key("response_length/min", ("trained/min_completion_tokens",), _KEPT),
    Key(
        "response_length/clip_ratio",
        ("trained/truncated_share",),
        "0 throughout where max_model_len cuts before the response width; in V1 not the truncation "
        "rate",
    ),
    Key("prompt_length/mean", ("trained/mean_prompt_tokens",), _KEPT),
    Key(
        "perf/total_num_tokens",
        ("trained/total_tokens",),
        "prompts and responses of the trained batch; discarded generation is in no key",
    ),
    Key(
        "perf/throughput",
        ("train/throughput",),
        "trained tokens over (step time × GPUs): throughput × time is not the tokens generated",
    ),
    Key(
        "critic/score/mean",
        ("reward/trained_mean",),
        "of the trained batch: with a filter it stays near the middle; overlong penalty included",
    ),
    Key("actor/entropy", ("train/entropy",), "aggregated by loss_agg_mode, before the update"),
    Key("actor/entropy_loss", ("train/entropy",), "aggregated by loss_agg_mode, before the update"),
    Key("actor/pg_loss", ("train/loss",)),
    Key("actor/pg_clipfrac", ("clip/share",), "either side; mean over mini-batches"),
    Key("actor/pg_clipfrac_lower", ("clip/dual_share",)),
    Key("actor/ppo_kl", ("kl/old_k1",)),
    Key("actor/grad_norm", ("train/gradient_norm",)),
    Key("actor/lr", ("train/learning_rate",)),
    Key(
        "training/filter_groups/evicted_samples",
        ("rollout/degenerate_groups",),
        "counts groups, not samples; logged only where not 0",
    ),
    Key(
        "training/filter_groups/discarded_surplus_samples",
        ("rollout/surplus_groups",),
        "counts groups, not samples; logged only where not 0",
    ),
    Key("fully_async/trainer/idle_ratio", (), "Σ timing_s/gen over Σ timing_s/step"),
)

# trained batch -> all candidates, where the two are one
_ALSO_CANDIDATES = {
    "trained/mean_completion_tokens": "rollout/mean_completion_tokens",
    "trained/max_completion_tokens": "rollout/max_completion_tokens",
    "trained/min_completion_tokens": "rollout/min_completion_tokens",
    "trained/truncated_share": "rollout/truncated_share",
    "trained/responses": "rollout/candidate_responses",
    "reward/trained_mean": "reward/candidate_mean",
    "rollout/train_completion_tokens": "rollout/completion_tokens",
}


def derive(mapped: Mapped) -> None:
    """Add what follows exactly: responses and tokens of the batch, and candidates if unfiltered."""
    _waves(mapped)
    _clip_ratio(mapped)
    _responses(mapped)
    filtered = mapped.has(*_FILTER_KEYS) and not mapped.options.unfiltered
    if not filtered:
        for trained, candidates in _ALSO_CANDIDATES.items():
            if trained in mapped.columns:
                mapped.fill(candidates, mapped.columns[trained], source=mapped.sources[trained])
        why = "as said" if mapped.options.unfiltered else "no key of a filter in the log"
        mapped.notes.append(f"trained batch = all that was sampled: {why}")
        return
    mapped.notes.append(
        "a filter may be on (its keys are in the log): nothing is said of the groups that were "
        "sampled and not trained; --unfiltered if the run had no filter"
    )


def _waves(mapped: Mapped) -> None:
    """Take waves from the lines «Keep generating»; steps without one had a single wave."""
    name = MESSAGE + "num_gen_batches"
    if not mapped.has(name):
        return
    said = mapped.keys[name].fillna(1.0)
    if not mapped.has(_BATCHES):
        mapped.columns["rollout/waves"] = said
        return
    differ = (said != mapped.keys[_BATCHES]) & mapped.keys[_BATCHES].notna()
    if differ.any():
        step = mapped.keys.index[differ.to_numpy()][0]
        mapped.notes.append(
            f"{int(differ.sum())} steps: {_BATCHES} and the lines «Keep generating» disagree "
            f"(first: step {step}); the key is used"
        )


def _clip_ratio(mapped: Mapped) -> None:
    """Tell V1, whose width is the longest row: never 0, not the truncation rate (#7817)."""
    ratio, longest = "response_length/clip_ratio", "response_length/max"
    if not mapped.has(ratio) or longest not in mapped.keys:
        return
    at = mapped.keys[longest][mapped.keys[ratio] > 0].dropna()
    if len(at) and at.min() != at.max():
        mapped.move_to_extra("trained/truncated_share")
        mapped.notes.append(
            f"{ratio} is not the truncation rate here: it is above 0 at different longest lengths, "
            "so it is the share of rows as long as the longest (V1, verl#7817); kept as extra"
        )


def _responses(mapped: Mapped) -> None:
    """Divide the batch's tokens by those of a mean row: its rows, where that comes out whole."""
    needed = ("perf/total_num_tokens", "response_length/mean", "prompt_length/mean")
    if not all(name in mapped.keys for name in needed):
        return
    total, response, prompt = (mapped.keys[name] for name in needed)
    rows = total / (response + prompt).where(lambda mean: mean > 0)
    if not is_whole(rows, tolerance=1e-4):
        return
    rows = rows.round()
    mapped.fill(
        "trained/responses",
        rows,
        source="perf/total_num_tokens / (response_length/mean + prompt_length/mean)",
    )
    tokens: pd.Series[float] = (rows * response).round()
    mapped.fill(
        "rollout/train_completion_tokens", tokens, source="trained/responses × response_length/mean"
    )
    mapped.notes.append(
        "trained/responses = perf/total_num_tokens over the mean prompt and response length"
    )


VERL = Vocabulary(
    "verl",
    KEYS,
    marks=("timing_s/", "timing/", "response_length/", "critic/", "actor/", "perf/total_num"),
    derive=derive,
    silent="rejected and surplus groups, their tokens, right and wrong groups, time of a wave",
)
