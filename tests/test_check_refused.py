"""Corrections, losses and KL terms that stop a run or do nothing, each with a clean twin."""

import pytest

from dapolab.check import Finding, Report, check_text

SLIME = (
    "python3 train.py --hf-checkpoint m --rollout-batch-size 64 --n-samples-per-prompt 8 "
    "--num-rollout 10 "
)
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --train.batch_size 512 --rollout.batch_size 128 "
    "--rollout.n_samples_per_prompt 8 --algo.advantage.estimator group_norm "
)
IS = "--algo.advantage.is_correction"
NEMO = """
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 16
{grpo}
policy:
  train_global_batch_size: {update}
loss_fn:
{loss}
"""
ON = "use_importance_sampling_correction: true"
TYPE, RATIO = "truncated_importance_sampling_type", "truncated_importance_sampling_ratio"


def nemo(*loss: str, grpo: str = "", update: int = 512) -> Report:
    lines = "\n".join(f"  {line}" for line in ("ratio_clip_min: 0.2", *loss))
    text = NEMO.format(loss=lines, grpo=f"  {grpo}" if grpo else "", update=update)
    return check_text(text, framework="nemo-rl")


def slime(words: str) -> Report:
    return check_text(SLIME + words, framework="slime")


def openrlhf(words: str) -> Report:
    return check_text(OPENRLHF + words, name="run.sh")


def only(report: Report, id: str) -> Finding | None:
    found = [f for f in report.findings if f.id == id]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    ("dirty", "clean", "id", "severity"),
    [
        # The type decides: a bound alone truncates nothing.
        (nemo(ON, f"{RATIO}: 2"), nemo(ON, f"{RATIO}: 2", f"{TYPE}: tis"),
         "sampling-correction-ignored", "warning"),
        (nemo(f"{RATIO}: 2", f"{TYPE}: tis"), nemo(ON, f"{RATIO}: 2", f"{TYPE}: tis"),
         "sampling-correction-refused", "error"),
        (nemo(ON, f"{TYPE}: tis"), nemo(ON, f"{TYPE}: tis", f"{RATIO}: 2"),
         "sampling-correction-refused", "error"),
        (nemo(ON, f"{TYPE}: icepop", f"{RATIO}: 2"),
         nemo(ON, f"{TYPE}: icepop", f"{RATIO}: 2", f"{RATIO}_min: 0.5"),
         "sampling-correction-refused", "error"),
        (nemo(ON, f"{TYPE}: tis", f"{RATIO}: 2", f"{RATIO}_min: 3"),
         nemo(ON, f"{TYPE}: tis", f"{RATIO}: 2", f"{RATIO}_min: 2"),
         "sampling-correction-refused", "error"),
        (nemo(ON, f"{TYPE}: icepo", f"{RATIO}: 2", f"{RATIO}_min: 0.5"),
         nemo(ON, f"{TYPE}: icepop", f"{RATIO}: 2", f"{RATIO}_min: 0.5"),
         "sampling-correction-refused", "error"),
        (nemo(ON, f"{TYPE}: seq-mask-tis", f"{RATIO}: 2", f"{RATIO}_min: 0.5",
              "sequence_level_importance_ratios: true", "token_level_loss: false"),
         nemo(ON, f"{TYPE}: seq-mask-tis", f"{RATIO}: 2", f"{RATIO}_min: 0.5"),
         "sampling-correction-refused", "error"),
        *[
            (nemo("use_cispo: true", excluded), nemo("use_cispo: true"),
             "loss-cispo-excludes", "error")
            for excluded in ("disable_ppo_ratio: true", "force_on_policy_ratio: true",
                             "ratio_clip_c: 3", "token_level_loss: false",
                             "sequence_level_importance_ratios: true")
        ],
        (nemo("force_on_policy_ratio: true", update=128), nemo("force_on_policy_ratio: true"),
         "clip-ratio-forced", "error"),
        (nemo(grpo="skip_reference_policy_logprobs_calculation: true"),
         nemo("reference_policy_kl_penalty: 0",
              grpo="skip_reference_policy_logprobs_calculation: true"),
         "kl-without-reference", "error"),
        (nemo(grpo="batch_multiplier: 3"), nemo(grpo="batch_multiplier: 1"),
         "filter-multiplier-alone", "error"),
        (nemo("positive_example_nll_weight: 0.1"), nemo("positive_example_nll_weight: 0"),
         "loss-nll-inert", "warning"),
        (slime("--opsm-delta 0.1"), slime("--use-opsm --opsm-delta 0.1"),
         "sampling-correction-ignored", "warning"),
        (slime("--tis-clip 5"), slime("--get-mismatch-metrics --tis-clip 5"),
         "sampling-correction-ignored", "warning"),
        (slime("--kl-loss-coef 0.01"), slime("--use-kl-loss --kl-loss-coef 0.01 --kl-loss-type k2"),
         "kl-loss-off", "warning"),
        (slime("--kl-loss-coef 0.01 --kl-coef 0.02"), slime("--kl-coef 0.02"),
         "kl-twice", "error"),
        (slime("--use-kl-loss --kl-loss-coef 0.01 --kl-loss-type k1"),
         slime("--use-kl-loss --kl-loss-coef 0.01 --kl-loss-type k1 --use-unbiased-kl"),
         "loss-kl-k1", "warning"),
        (slime("--num-steps-per-rollout 4 --global-batch-size 256"),
         slime("--num-steps-per-rollout 4 --global-batch-size 128"),
         "batch-steps-disagree", "error"),
        (slime("--advantage-estimator reinforce_plus_plus_baseline"),
         slime("--advantage-estimator reinforce_plus_plus_baseline --normalize-advantages"),
         "advantage-not-whitened", "error"),
        (openrlhf(f"{IS}_level token {IS}_gating binary_kl {IS}_threshold 0.005"),
         openrlhf(f"{IS}_level token {IS}_gating binary_kl {IS}_threshold -0.001 0.005"),
         "sampling-gate-rounding", "warning"),
        (openrlhf(f"{IS}_level token {IS}_gating binary_kl {IS}_threshold 0 0.005"),
         openrlhf(f"{IS}_level seq {IS}_gating binary_kl {IS}_threshold 0.005"),
         "sampling-gate-rounding", "warning"),
        (openrlhf(f"{IS}_level token {IS}_gating binary_kl {IS}_threshold 0.005"),
         openrlhf(f"{IS}_level token {IS}_gating tv {IS}_threshold 0.1"),
         "sampling-gate-rounding", "warning"),
        (openrlhf("--algo.kl.use_loss --actor.policy_loss_type gspo"),
         openrlhf("--algo.kl.use_loss --algo.kl.estimator k2"), "loss-kl-aggregation", "note"),
        (openrlhf("--algo.kl.use_loss --actor.loss_agg_mode seq-mean-token-mean"),
         openrlhf("--actor.loss_agg_mode seq-mean-token-mean"), "loss-kl-aggregation", "note"),
    ],
)  # fmt: skip
def test_found_and_not_in_the_clean_twin(
    dirty: Report, clean: Report, id: str, severity: str
) -> None:
    finding = only(dirty, id)
    assert finding is not None
    assert finding.severity == severity
    assert finding.certain
    assert only(clean, id) is None


def test_numbers_in_the_messages() -> None:
    """64 x 8 = 512 responses, 4 steps of 128; 32 x 16 = 512 in updates of 128."""
    steps = only(slime("--num-steps-per-rollout 4 --global-batch-size 256"), "batch-steps-disagree")
    assert steps is not None
    assert "512 responses // 4 steps are 128, --global-batch-size is 256" in steps.message
    forced = only(nemo("force_on_policy_ratio: true", update=128), "clip-ratio-forced")
    assert forced is not None
    assert "here 4:" in forced.message
    assert "policy.train_global_batch_size: 512" in forced.suggestion


def test_a_gate_with_a_negative_bound_is_not_refused() -> None:
    """OpenRLHF 0.11.2 refuses a lower bound above 0 alone."""
    words = f"{IS}_level token {IS}_gating binary_kl {IS}_threshold "
    assert only(openrlhf(words + "-0.001 0.005"), "sampling-correction-refused") is None
    assert only(openrlhf(words + "0.001 0.005"), "sampling-correction-refused") is not None
