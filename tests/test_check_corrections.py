"""The checker on KL terms and on the sampler corrections of slime, OpenRLHF and NeMo RL."""

from pathlib import Path

import pytest

from dapolab.check import Report, check_file, check_text

SLIME = (
    "python3 train.py --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 64 "
    "--hf-checkpoint m --advantage-estimator grpo "
)
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --rollout.batch_size 128 --train.batch_size 128 "
    "--rollout.n_samples_per_prompt 8 --algo.advantage.estimator group_norm "
)
OLD_OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --rollout_batch_size 128 --train_batch_size 128 "
    "--n_samples_per_prompt 8 --advantage_estimator group_norm "
)
NEMO = "grpo:\n  num_prompts_per_step: 32\n  num_generations_per_prompt: 16\nloss_fn:\n"
VERL = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=64 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.actor.use_dynamic_bsz=True "
)
TRL = "loss_type: dapo\nnum_generations: 8\n"
IS = "--algo.advantage.is_correction"


def slime(words: str) -> Report:
    return check_text(SLIME + words, name="run.sh")


def openrlhf(words: str) -> Report:
    return check_text(OPENRLHF + words, name="run.sh")


def nemo(*lines: str) -> Report:
    return check_text(NEMO + "".join(f"  {line}\n" for line in lines), framework="nemo-rl")


def ids(report: Report) -> dict[str, str]:
    return {finding.id: finding.severity for finding in report.findings}


# ---------------------------------------------------------------------------- KL


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (check_text(VERL, name="run.sh"), "no KL"),
        (
            check_text(VERL + "actor_rollout_ref.actor.use_kl_loss=True", name="run.sh"),
            "KL low_var_kl x 0.001 in the loss",
        ),
        (
            check_text(VERL + "algorithm.use_kl_in_reward=True", name="run.sh"),
            "KL kl x 0.001 in the reward",
        ),
        (check_text(TRL), "no KL"),
        (check_text(TRL + "beta: 0.04\n"), "KL k3 x 0.04 in the loss"),
        (slime(""), "no KL"),
        (slime("--use-kl-loss --kl-loss-coef 0.01 --kl-loss-type k2"), "KL k2 x 0.01 in the loss"),
        (slime("--kl-coef 0.02"), "KL k1 x 0.02 in the reward"),
        (openrlhf(""), "KL k1 x 0.01 in the reward"),
        (openrlhf("--algo.kl.init_coef 0"), "no KL"),
        (openrlhf("--algo.kl.use_loss --algo.kl.estimator k2"), "KL k2 x 0.01 in the loss"),
        (nemo("ratio_clip_max: 0.28"), "KL k3 x 0.01 in the loss"),
        (nemo("reference_policy_kl_penalty: 0"), "no KL"),
        (nemo("use_kl_in_reward: true"), "KL k3 x 0.01 in the reward"),
        (check_text("--groups-per-step 4 --algorithm dapo", framework="06-dapo"), "no KL"),
    ],
    ids=lambda x: x if isinstance(x, str) else x.framework,
)
def test_the_summary_names_the_kl(report: Report, words: str) -> None:
    assert f"; {words};" in report.summary


def test_kl_in_reward_and_loss_at_once() -> None:
    loss, reward = "actor_rollout_ref.actor.use_kl_loss=True ", "algorithm.use_kl_in_reward=True "
    assert ids(check_text(VERL + loss + reward, name="run.sh"))["kl-twice"] == "warning"
    off = "algorithm.kl_ctrl.kl_coef=0"
    for words in (loss, reward, loss + reward + off):
        assert "kl-twice" not in ids(check_text(VERL + words, name="run.sh"))
    both = "--kl-coef 0.1 --use-kl-loss --kl-loss-coef 0.1 --kl-loss-type k2"
    assert ids(slime(both))["kl-twice"] == "error"


@pytest.mark.parametrize(
    ("unset", "given"),
    [
        (openrlhf(""), openrlhf("--algo.kl.init_coef 0.01")),
        (nemo("ratio_clip_max: 0.28"), nemo("reference_policy_kl_penalty: 0.01")),
    ],
    ids=["OpenRLHF", "NeMo RL"],
)
def test_kl_that_nobody_asked_for(unset: Report, given: Report) -> None:
    assert ids(unset)["kl-on-by-default"] == "note"
    assert "kl-on-by-default" not in ids(given)


# ---------------------------------------------------------------------------- slime


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--use-tis", "sampler correction: token weights truncated to [0, 2]"),
        ("--use-tis --tis-clip 5 --tis-clip-low 0.5", "token weights truncated to [0.5, 5]"),
        ("--use-tis --custom-tis-function-path a.b.icepop", "token weights by icepop to [0, 2]"),
        ("--use-opsm --opsm-delta 0.1", "punished responses out above a mean KL of 0.1"),
    ],
)
def test_slime_s_correction_is_named(words: str, shown: str) -> None:
    assert shown in slime(words).summary
    assert "sampler correction" not in slime("").summary


def test_slime_s_weights_and_denominator_exclude_each_other() -> None:
    report = slime("--use-tis --use-rollout-logprobs")
    assert ids(report)["sampling-correction-twice"] == "error"
    for words in ("--use-tis", "--use-rollout-logprobs"):
        assert "sampling-correction-twice" not in ids(slime(words))


def test_slime_s_bounds_without_weights() -> None:
    (finding,) = (
        f for f in slime("--tis-clip 5").findings if f.id == "sampling-correction-ignored"
    )
    assert finding.setting == "--tis-clip"
    assert "sampling-correction-ignored" not in ids(slime("--use-tis --tis-clip 5"))


# ---------------------------------------------------------------------------- OpenRLHF


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("", ""),
        (f"{IS}_level token", "token weights, tokens whose ratio is not within [0.5, 5.0] out"),
        (f"{IS}_level seq", "token weights, responses whose mean ratio is not within [0.5, 5.0]"),
        (f"{IS}_level token {IS}_mode clip", "token weights truncated, within [0.5, 5.0]"),
        (
            f"{IS}_level seq {IS}_gating tv {IS}_threshold 0.1",
            "token weights, responses whose mean tv is not within [0, 0.1] out",
        ),
    ],
)
def test_openrlhf_s_correction_is_named(words: str, shown: str) -> None:
    summary = openrlhf(words).summary
    assert ("sampler correction" in summary) == bool(shown)
    assert shown in summary


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (f"{IS}_level seq {IS}_mode clip", True),
        (f"{IS}_level token {IS}_mode clip {IS}_gating tv", True),
        (f"{IS}_level token {IS}_gating tv", True),  # the default band has a lower bound
        (f"{IS}_level token {IS}_gating binary_kl {IS}_threshold 0 0.1", False),
        (f"{IS}_level token {IS}_mode clip", False),
        (f"{IS}_level seq", False),
    ],
)
def test_what_openrlhf_s_loss_refuses(words: str, refused: bool) -> None:
    """OpenRLHF 0.11.2 models/loss.py:158-172, three conditions restated."""
    assert (ids(openrlhf(words)).get("sampling-correction-refused") == "error") == refused


def test_openrlhf_s_settings_of_a_correction_that_is_off() -> None:
    assert ids(openrlhf(f"{IS}_mode clip"))["sampling-correction-ignored"] == "warning"
    assert "sampling-correction-ignored" not in ids(openrlhf(f"{IS}_level token {IS}_mode clip"))


def test_openrlhf_s_gspo_takes_the_sampler_as_denominator() -> None:
    report = openrlhf(f"--actor.policy_loss_type gspo {IS}_level token")
    assert ids(report)["sampling-correction-replaces"] == "note"
    assert "on current/sampler" in report.summary
    assert "sampler correction" not in report.summary
    assert "on current/sampler" not in openrlhf("--actor.policy_loss_type gspo").summary


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("tis", "token weights truncated, within [0.5, 5.0]"),
        ("icepop", "tokens whose ratio is not within"),
        ("seq-mask-tis", "responses whose mean ratio is not within"),
    ],
)
def test_earlier_openrlhf_names_its_corrections(kind: str, shown: str) -> None:
    words = f"--enable_vllm_is_correction --vllm_is_correction_type {kind}"
    report = check_text(OLD_OPENRLHF + words, name="run.sh", version="0.9.0")
    assert shown in report.summary
    assert "sampler" not in check_text(OLD_OPENRLHF, name="run.sh", version="0.9.0").summary


# ---------------------------------------------------------------------------- NeMo RL


def test_nemo_s_correction_is_named() -> None:
    on = "use_importance_sampling_correction: true"
    bound = "truncated_importance_sampling_ratio: 2.0"
    low = "truncated_importance_sampling_ratio_min: 0.5"
    assert "sampler correction: weights without a bound" in nemo(on).summary
    kind = "truncated_importance_sampling_type: "
    assert "correction tis, weights within [0, 2]" in nemo(on, bound, kind + "tis").summary
    assert "tis, weights within [0.5, 2]" in nemo(on, bound, low, kind + "tis").summary
    icepop = nemo(on, bound, low, kind + "icepop")
    assert "correction icepop, tokens outside [0.5, 2] out" in icepop.summary
    masked = nemo(on, bound, low, kind + "seq-mask-tis")
    assert "seq-mask-tis, responses whose mean ratio leaves [0.5, 2] out" in masked.summary
    assert "sampler correction" not in nemo("ratio_clip_max: 0.28").summary
    for clean in (icepop, masked):
        assert not {"sampling-correction-refused", "sampling-correction-ignored"} & set(ids(clean))


def test_nemo_s_losses() -> None:
    sequence = "sequence_level_importance_ratios: true"
    assert "loss gspo" in nemo(sequence, "token_level_loss: false").summary
    assert ids(nemo(sequence))["loss-levels-exclude"] == "error"
    assert "loss-levels-exclude" not in ids(nemo(sequence, "token_level_loss: false"))
    plain = nemo("disable_ppo_ratio: true", "ratio_clip_max: 0.28")
    assert "loss reinforce" in plain.summary
    assert "clip-unused-by-loss" in ids(plain)
    assert "loss cispo" in nemo("use_cispo: true").summary


@pytest.mark.parametrize(("update", "warned"), [(512, False), (128, True)])
def test_nemo_s_ratio_forced_to_one(update: int, warned: bool) -> None:
    forced = "force_on_policy_ratio: true\npolicy:\n  train_global_batch_size: " + str(update)
    assert ("clip-ratio-forced" in ids(nemo(forced))) == warned


# ---------------------------------------------------------------------------- what was not judged


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (VERL, "0.7.1"),
        (TRL, "1.10"),
        (SLIME, "0.1"),
        (OLD_OPENRLHF, "0.8.0"),
        ("--groups-per-step 4 --algorithm dapo --no-such-key 1", "1234567"),
    ],
)
def test_keys_of_other_versions_are_said_to_be_unjudged(text: str, version: str) -> None:
    framework = "06-dapo" if text.startswith("--groups") else None
    name = "" if text is TRL else "run.sh"
    report = check_text(text, name=name, framework=framework, version=version)
    assert ids(report)["keys-not-judged"] == "note"
    assert "key-rejected" not in ids(report)


def test_settings_without_a_table_are_counted() -> None:
    (finding,) = (
        f for f in slime("--num-layers 36 --hidden-size 2048").findings
        if f.id == "keys-not-judged"
    )  # fmt: skip
    assert finding.message.startswith("2 of 7 settings")  # Megatron's; hf-checkpoint is slime's
    outside = nemo("ratio_clip_max: 0.28\nlogger:\n  log_dir: logs")
    (finding,) = (f for f in outside.findings if f.id == "keys-not-judged")
    assert finding.setting == "logger.log_dir"
    assert "keys-not-judged" not in ids(nemo("ratio_clip_max: 0.28"))


# ---------------------------------------------------------------------------- shipped examples


def test_nemo_s_dapo_example_punishes_twice_as_much_at_the_engine_s_cap() -> None:
    """Buffer 2,048 up to 14,336 tokens, engine to 16,384, not clamped: −(16384 − 12288)/2048."""
    path = Path(__file__).parent / "check_configs" / "nemo_dapo_7b.yaml"
    (finding,) = (f for f in check_file(path).findings if f.id == "length-cap-mismatch")
    assert "the penalty starts at 12288 and is -2 at the cap, not -1" in finding.message
    assert finding.setting == "grpo.reward_shaping.max_response_length"


def test_earlier_icepop_of_openrlhf_has_a_flag_of_its_own() -> None:
    path = Path(__file__).parent / "check_configs" / "openrlhf_prorlv2_0_9.sh"
    summary = check_file(path, version="0.9.0").summary
    assert "token weights, tokens whose ratio is not within [0.5, 5.0] out" in summary
    assert "KL k2 x 0.0001 in the loss" in summary
