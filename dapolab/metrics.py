"""Every metric once: its name, its unit, what it means. Simulator and real training share them.

Names of verl, TRL and agentic-rl-lab 06-dapo are kept where they exist. A metric that a policy does
not have (waves without a barrier) is absent from its row, not 0 or 1.
"""

from typing import NamedTuple


class Metric(NamedTuple):
    """One quantity of a training step."""

    name: str
    unit: str
    meaning: str


STEP_METRICS: tuple[Metric, ...] = (
    # the collection, as 06-dapo logs it
    Metric("rollout/candidate_groups", "groups", "groups whose fate the step decided, kept or not"),
    Metric("rollout/effective_groups", "groups", "groups that are trained"),
    Metric("rollout/effective_group_ratio", "share", "effective over candidate groups; biased up"),
    Metric("rollout/effective_fill_ratio", "share", "effective over wanted groups"),
    Metric("rollout/oversample_ratio", "ratio", "candidate over wanted groups"),
    Metric("rollout/unbiased_effective_ratio", "share", "(B−1)/(N−1) if filled, else kept/N (A7)"),
    Metric("rollout/completion_tokens", "tokens", "tokens generated, aborted ones included"),
    Metric("rollout/train_completion_tokens", "tokens", "tokens of trained responses"),
    Metric("rollout/token_utilisation", "share", "trained over generated tokens"),
    Metric("rollout/degenerate_tokens", "tokens", "tokens of all-right and all-wrong groups"),
    Metric("rollout/surplus_tokens", "tokens", "tokens of finished groups beyond the target"),
    Metric("rollout/aborted_tokens", "tokens", "tokens of responses that were aborted"),
    Metric("rollout/mean_completion_tokens", "tokens", "mean length of finished candidates"),
    Metric("rollout/max_completion_tokens", "tokens", "longest finished candidate"),
    Metric("rollout/truncated_share", "share", "finished candidates cut at the cap"),
    Metric("rollout/mixed_candidate_groups", "groups", "mixed candidates, aborted ones included"),
    Metric("rollout/degenerate_groups", "groups", "finished groups that the filter dropped"),
    Metric("rollout/surplus_groups", "groups", "finished, passed the filter, yet not trained"),
    Metric("rollout/aborted_groups", "groups", "groups in flight when the collection stopped"),
    Metric(
        "rollout/carried_groups", "groups", "groups that go on in the next step, or wait for it"
    ),
    Metric("rollout/skipped_prompts", "prompts", "prompts that selection passed over"),
    Metric("rollout/carried_tokens", "tokens", "tokens so far of the groups carried on"),
    Metric("rollout/failed_groups", "groups", "groups lost to a failure of the system"),
    Metric(
        "rollout/failed_samplings", "responses", "responses that failed, resampled ones included"
    ),
    Metric("rollout/failed_tokens", "tokens", "tokens of failed groups and of failed samplings"),
    Metric(
        "rollout/timed_out_responses", "responses", "calls of tools and scores that came too late"
    ),
    Metric("rollout/all_right_share", "share", "finished groups with every answer right"),
    Metric("rollout/all_wrong_share", "share", "finished groups with every answer wrong"),
    Metric("rollout/mixed_share", "share", "finished groups with right and wrong answers"),
    # the barrier
    Metric("rollout/waves", "waves", "barrier rounds; absent where there is no barrier"),
    Metric("rollout/wave_seconds", "s", "mean seconds of a wave"),
    Metric("rollout/t50_s", "s", "half of a wave's responses are done (mean over waves)"),
    Metric("rollout/t90_s", "s", "90 % of a wave's responses are done"),
    Metric("rollout/t95_s", "s", "95 % of a wave's responses are done"),
    Metric("rollout/t99_s", "s", "99 % of a wave's responses are done"),
    Metric("rollout/idle_slot_share", "share", "1 − mean/peak concurrency of the waves"),
    # time of the step and its parts
    Metric("time/step_seconds", "s", "one training step, rollout to weight sync"),
    Metric("time/rollout_seconds", "s", "overhead + prefill + decode + tail"),
    Metric("time/overhead_seconds", "s", "call overhead, polling, scores after the last token"),
    Metric("time/reward_wait_seconds", "s", "nothing decodes and a score is waited for"),
    Metric("time/tool_wait_seconds", "s", "nothing decodes and a call of a tool is waited for"),
    Metric("time/prefill_seconds", "s", "share of engine time spent on prefill tokens"),
    Metric("time/decode_seconds", "s", "engine time at peak-equivalent concurrency"),
    Metric("time/tail_seconds", "s", "wave seconds × idle slot share: waiting for the longest"),
    Metric("time/reward_seconds", "s", "scoring"),
    Metric("time/old_logprob_seconds", "s", "old log-probabilities of the trained batch"),
    Metric("time/reference_seconds", "s", "reference log-probabilities"),
    Metric("time/update_seconds", "s", "forward, backward, optimizer"),
    Metric("time/sync_seconds", "s", "weights to the rollout engine"),
    Metric("time/validation_seconds", "s", "validation, on the steps that have it"),
    Metric("time/checkpoint_seconds", "s", "checkpoint, on the steps that have it"),
    Metric("time/other_seconds", "s", "anything fixed"),
    Metric("time/gpu_seconds", "GPU·s", "step seconds × GPUs held"),
    # what is trained
    Metric("train/mixed_groups", "groups", "trained groups that carry signal: right and wrong"),
    Metric("train/repeated_groups", "groups", "copies trained in place of degenerate groups"),
    Metric("train/update_skipped", "share", "1 where no group was left to train"),
    Metric("reward/accuracy", "share", "right answers among finished candidates"),
    Metric("reward/trained_accuracy", "share", "right answers in the trained batch"),
    Metric("reward/length_penalty_mean", "reward", "mean soft overlong penalty of candidates"),
    Metric("reward/shaped_mean", "reward", "mean of ±1 plus penalty over candidates"),
    Metric("bias/pass_rate_candidates", "share", "mean true pass rate of candidate prompts"),
    Metric("bias/pass_rate_effective", "share", "the same over all mixed candidates"),
    Metric("bias/pass_rate_trained", "share", "the same over trained prompts"),
    Metric("bias/length_candidates", "tokens", "mean full length, all submitted candidates"),
    Metric("bias/length_effective", "tokens", "mean full length, all mixed candidates"),
    Metric("bias/length_trained", "tokens", "mean length of trained responses"),
    Metric("bias/length_ratio_policy", "ratio", "trained over effective: the policy alone"),
    Metric("bias/length_ratio_total", "ratio", "trained over candidates: filter and policy"),
    # how old is what is trained: versions between the policy that generated and the one that learns
    Metric("staleness/mean_versions", "versions", "mean age of a trained token when it is trained"),
    Metric(
        "staleness/mean_versions_by_response",
        "versions",
        "mean over trained responses of the age since their submission",
    ),
    Metric("staleness/max_versions", "versions", "oldest token of the trained batch"),
    Metric(
        "staleness/off_policy_token_share",
        "share",
        "trained tokens generated by an older version than the one that learns",
    ),
    Metric("staleness/dropped_groups", "groups", "finished groups dropped as too old"),
    Metric("staleness/dropped_tokens", "tokens", "tokens of groups dropped as too old"),
    Metric("bias/length_dropped", "tokens", "mean length of groups dropped as too old"),
    # rollout and learner side by side (absent where they take turns)
    Metric("pipeline/learner_wait_seconds", "s", "the learner waits for its batch"),
    Metric("pipeline/learner_busy_share", "share", "of the step that the learner works"),
    Metric("pipeline/rollout_busy_share", "share", "of the step that a replica decodes"),
    Metric("pipeline/rollout_slot_share", "share", "response-seconds over slots × step seconds"),
    Metric("pipeline/queued_groups", "groups", "finished groups waiting as the batch filled"),
    # the engine
    Metric("engine/preemptions", "responses", "evictions for lack of KV memory"),
    Metric("engine/peak_kv_tokens", "tokens", "largest KV use of any replica"),
    Metric("engine/mean_concurrency", "responses", "responses in decoding, time average"),
)

# Of one optimizer update; shares are of its tokens, and 0 for an empty update.
UPDATE_METRICS: tuple[Metric, ...] = (
    Metric("update/tokens", "tokens", "tokens in the loss, multiplicities counted"),
    Metric("update/responses", "responses", "responses with a token in the loss"),
    Metric("update/is_empty", "flag", "no token was left: nothing was learned"),
    Metric("update/zero_advantage_share", "share", "tokens with advantage 0"),
    Metric("clip/upper_share", "share", "A > 0 and the ratio above its bound"),
    Metric("clip/lower_share", "share", "A < 0 and the ratio below its bound"),
    Metric("clip/dual_share", "share", "A < 0 and the ratio above the dual-clip constant"),
    Metric("clip/active_tokens", "tokens", "tokens whose surrogate has a gradient"),
    Metric("clip/covariance_share", "share", "tokens that clip_cov or kl_cov chose"),
    Metric("ratio/mean", "ratio", "mean of π_current/π_old"),
    Metric("ratio/min", "ratio", "smallest ratio"),
    Metric("ratio/max", "ratio", "largest ratio"),
    Metric("ratio/p01", "ratio", "1 % of the ratios are smaller, from a sample of tokens"),
    Metric("ratio/p50", "ratio", "median, from a sample"),
    Metric("ratio/p99", "ratio", "1 % of the ratios are larger, from a sample"),
    Metric("ratio/p999", "ratio", "0.1 % of the ratios are larger, from a sample"),
    Metric("kl/old_k1", "nats", "KL(old‖current), mean of −log r (verl: ppo_kl)"),
    Metric("kl/old_k3", "nats", "KL(old‖current), mean of r − 1 − log r"),
    Metric("kl/ref_k1", "nats", "KL(current‖reference), mean of log π/π_ref"),
    Metric("kl/ref_k3", "nats", "KL(current‖reference), mean of π_ref/π − 1 + log π/π_ref"),
    Metric("entropy/token_mean", "nats", "mean over tokens, whatever the loss's aggregation"),
    Metric("sampler/k1", "nats", "KL(sampler‖trainer), mean of log π_sampler/π"),
    Metric("sampler/k3", "nats", "KL(sampler‖trainer), mean of w − 1 − log w, w = π/π_sampler"),
    Metric("sampler/max_abs_log_ratio", "nats", "largest |log w| of a token"),
    Metric("sampler/ess_share", "share", "effective sample size of the weights over tokens"),
    Metric("sampler/truncated_share", "share", "tokens whose weight met a cap or a band"),
    Metric("sampler/rejected_share", "share", "tokens that the correction took out"),
)

# What a step of real training tells beside the two above; the names of 06-dapo where it has one.
# Shares under ``ppo/`` are of all tokens of the step's updates, each update counted.
TRAINING_METRICS: tuple[Metric, ...] = (
    Metric("rollout/completions", "responses", "finished candidates"),
    Metric("rollout/train_completions", "responses", "responses of trained groups"),
    Metric("rollout/unique_completion_rate", "share", "distinct responses of a group over G, mean"),
    Metric("rollout/mean_sampled_token_surprisal", "nats", "−log π of candidates' tokens, mean"),
    Metric("rollout/right_completion_tokens", "tokens", "mean length of right candidates"),
    Metric("rollout/wrong_completion_tokens", "tokens", "mean length of wrong candidates"),
    Metric("rollout/filler_tokens", "tokens", "filler of a finished candidate, mean (toy task)"),
    Metric("rollout/iterations", "iterations", "decode iterations of the step"),
    Metric("reward/base_mean", "reward", "mean of ±1 over finished candidates"),
    Metric("reward/format_rate", "share", "finished candidates from which an answer can be read"),
    Metric("ppo/loss", "loss", "mean over the step's updates"),
    Metric("ppo/ratio_mean", "ratio", "mean of π_current over the policy in the denominator"),
    Metric("ppo/clip_fraction", "share", "lower plus upper"),
    Metric("ppo/lower_clip_fraction", "share", "A < 0 and the ratio below its bound"),
    Metric("ppo/upper_clip_fraction", "share", "A > 0 and the ratio above its bound"),
    Metric("ppo/train_tokens", "tokens", "tokens in the loss, summed over updates"),
    Metric("ppo/gradient_active_tokens", "tokens", "tokens with a gradient, summed over updates"),
    Metric("ppo/sequences", "responses", "responses in the loss, summed over updates"),
    Metric("train/updates", "updates", "optimizer steps made"),
    Metric("train/learning_rate", "rate", "learning rate of the last update"),
    Metric("train/gradient_norm", "norm", "gradient norm before clipping, mean over updates"),
    Metric("train/parameter_step", "norm", "‖Δθ‖ of the step: all its updates together"),
    Metric("train/data_cursor_consumed", "prompts", "prompts taken since the start"),
)

# Of a fixed held-out set, sampled with a stream of its own; intervals are 99 %, by prompt.
EVALUATION_METRICS: tuple[Metric, ...] = (
    Metric("eval/accuracy", "share", "avg@n: right answers over all answers"),
    Metric("eval/accuracy_low", "share", "lower end of its interval, clustered by prompt"),
    Metric("eval/accuracy_high", "share", "upper end"),
    Metric("eval/format_rate", "share", "answers that can be read"),
    Metric("eval/completion_tokens", "tokens", "mean length"),
    Metric("eval/right_completion_tokens", "tokens", "mean length of right answers"),
    Metric("eval/wrong_completion_tokens", "tokens", "mean length of wrong answers"),
    Metric("eval/filler_tokens", "tokens", "filler of an answer, mean (toy task)"),
    Metric("eval/truncated_share", "share", "answers cut at the cap"),
    Metric("eval/distinct_answers", "answers", "different readable answers a prompt, mean"),
    Metric("eval/surprisal", "nats", "−log π of sampled tokens, mean: an estimate of entropy"),
)
# eval/pass_at_K (share): unbiased 1 − C(n−c, K)/C(n, K), mean over prompts; one column a K.

PROMPT_ACCURACY = "reward/accuracy_prompt_"
"""(share): one prompt's pass rate, by its number from 1, in a bandit of several."""

BY_NAME: dict[str, Metric] = {
    metric.name: metric
    for metric in STEP_METRICS + UPDATE_METRICS + TRAINING_METRICS + EVALUATION_METRICS
}

GROUP_COLUMNS: dict[str, str] = {
    "policy": "name of the collection policy",
    "replication": "independent repetition",
    "step": "training step, from 0",
    "wave": "barrier round within the step, from 0; missing without a barrier",
    "position": "place in the prompt stream, the same under every policy",
    "prompt_id": "prompt, stable over epochs",
    "status": "trained | degenerate | surplus | aborted | stale | failed",
    "n_correct": "right answers of the group",
    "pass_rate": "true pass rate of the prompt at that step",
    "n_tokens_mean": "mean full length of its responses, tokens",
    "n_tokens_max": "longest of its responses, tokens",
    "generated_tokens": "tokens really generated (less than full where aborted)",
    "n_truncated": "responses cut by the cap, or by the time limit of a tool",
    "n_failed": "samplings that the system failed; missing where none can fail",
    "n_timed_out": "calls of tools and scores that came too late; missing likewise",
    "submit_s": "seconds from the start of the run",
    "end_s": "end of its last response, or of the abort",
    "begun_step": "step that first sampled it; missing where a step leaves nothing to the next",
    "version_submitted": "weight version at its submission; missing where rollout and learner take "
    "turns",
    "version_trained": "version that learned from it; missing where it was not trained",
    "staleness_mean": "mean age in versions over its tokens when trained",
}
# "stale": finished, then dropped as older than the policy allows
# "failed": a response was lost to the system, and its group with it
STATUSES = ("trained", "degenerate", "surplus", "aborted", "stale", "failed")
