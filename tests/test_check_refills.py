"""The checker on over-sampling and refusals of OpenRLHF and slime, each beside a clean twin."""

import pytest

from dapolab.check import Finding, check_text

OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --algo.advantage.estimator group_norm "
    "--rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.batch_size {update} "
    "--algo.dynamic_filtering_enable {more}"
)
SLIME = (
    "python3 train.py --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 128 "
    "--dynamic-sampling-filter-path slime.rollout.filter_hub.dynamic_sampling_filters."
    "check_reward_nonzero_std {more}"
)


def found(text: str, *, pass_rate: float | None = None, **how: str) -> dict[str, Finding]:
    report = check_text(text, name="run.sh", pass_rate=pass_rate, **how)
    return {finding.id: finding for finding in report.findings}


def openrlhf(more: str, *, update: int = 128, version: str | None = None) -> dict[str, Finding]:
    how = {} if version is None else {"version": version}
    return found(OPENRLHF.format(more=more, update=update), **how)


REMOTE = "--reward.remote_url reward.py"


@pytest.mark.parametrize(
    ("id", "wrong", "right"),
    [
        # openrlhf 0.11.2 cli/train_ppo_ray.py:736-755, read in the wheel
        ("filter-needs-remote-reward", "", REMOTE),
        ("filter-needs-remote-reward", "", "--train.agent_func_path agent.py"),
        (
            "batch-generation-over-batch",
            f"{REMOTE} --rollout.vllm_generate_batch_size 256",
            f"{REMOTE} --rollout.vllm_generate_batch_size 256 --train.async_enable",
        ),
        (
            "batch-generation-over-batch",
            f"{REMOTE} --rollout.vllm_generate_batch_size 129",
            f"{REMOTE} --rollout.vllm_generate_batch_size 128",
        ),
        (
            "filter-range-empty",
            f"{REMOTE} --algo.dynamic_filtering_range 1 0",
            f"{REMOTE} --algo.dynamic_filtering_range 0 1",
        ),
    ],
)
def test_what_openrlhf_asserts_against(id: str, wrong: str, right: str) -> None:
    assert openrlhf(wrong)[id].severity == "error"
    assert id not in openrlhf(right)
    assert id not in openrlhf(wrong, version="0.8")  # its assertions were not read


def test_a_fragment_need_not_name_its_reward() -> None:
    text = OPENRLHF.format(more="", update=128).removeprefix("python3 -m openrlhf.cli.")
    assert "filter-needs-remote-reward" not in found(text.removeprefix("train_ppo_ray "))


def test_old_arguments_are_shown_where_they_stand() -> None:
    text = "python3 -m openrlhf.cli.train_ppo_ray \\\n  --pretrain m \\\n  --init_kl_coef 0\n"
    finding = found(text)["keys-old-style"]
    assert (finding.setting, finding.line) == ("--init_kl_coef", 3)


def test_suggestions_name_arguments_as_they_are_written() -> None:
    assert "--train.batch_size" in openrlhf(REMOTE, update=1024)["clip-no-effect"].suggestion
    slime = found(SLIME.format(more="--eps-clip-high 0.28").replace(" 128", " 256"))
    assert "--global-batch-size" in slime["clip-no-effect"].suggestion


@pytest.mark.parametrize("chunk", [32, 33, 64, 100])
def test_slime_starts_another_chunk_once_fewer_than_a_batch_are_left(chunk: int) -> None:
    """sglang_rollout.py:374-470: submit a chunk while submitted − dropped < B."""
    B = 32
    drops = next(d for d in range(chunk + 1) if chunk - d < B)
    finding = found(SLIME.format(more=f"--over-sampling-batch-size {chunk}"))["filter-chunk-refill"]
    if drops == 1:
        assert f"one dropped group starts a whole chunk of {chunk}" in finding.message
    else:
        assert f"starts {chunk} groups, and {chunk} more after {drops} drops" in finding.message
    assert f"up to {chunk - drops + chunk} groups" in finding.message


def test_partial_rollout_is_not_suggested_to_who_has_it() -> None:
    assert "--partial-rollout" in found(SLIME.format(more=""))["filter-chunk-refill"].suggestion
    kept = found(SLIME.format(more="--partial-rollout"))["filter-chunk-refill"]
    assert kept.suggestion == ""
    assert "kept when aborted" in kept.message


def test_slime_refuses_chunks_below_the_batch() -> None:
    id = "batch-chunk-below-batch"
    assert found(SLIME.format(more="--over-sampling-batch-size 31"))[id].severity == "error"
    assert id not in found(SLIME.format(more="--over-sampling-batch-size 32"))


def test_cost_of_the_filter_counts_the_whole_chunk() -> None:
    """At p = 0.2, G = 8 a step needs 32/q = 38 groups; a chunk of 64 is started anyway."""
    q = 1 - 0.2**8 - 0.8**8
    large = found(SLIME.format(more="--over-sampling-batch-size 64"), pass_rate=0.2)
    assert "at least 64 candidate groups" in large["filter-cost"].message
    small = found(SLIME.format(more=""), pass_rate=0.2)
    assert f"at least {32 / q:.4g} candidate groups" in small["filter-cost"].message


def test_gspo_in_slime_is_not_told_to_weigh_tokens() -> None:
    """The sequence mean is GSPO's own; its advantages are the group's, as with grpo."""
    clip = "--eps-clip 3e-4 --eps-clip-high 4e-4"
    text = SLIME.format(more=f"{clip} --advantage-estimator gspo")
    assert "loss-not-token-level" not in found(text)
    assert "loss-not-token-level" in found(SLIME.format(more=clip))
    assert "advantage grpo (std ddof 1" in check_text(text, name="run.sh").summary


def test_only_trl_takes_the_current_log_probs_themselves() -> None:
    """TRL detaches its own log-probs, others recompute: other micro-batches, other roundings."""
    slime = found(SLIME.format(more="").replace(" 128", " 256"))["clip-no-effect"]
    assert "1 on every token, up to rounding" in slime.message
    text = "num_generations: 8\nper_device_train_batch_size: 8\nepsilon_high: 0.28\n"
    (trl,) = (f for f in check_text(text).findings if f.id == "clip-no-effect")
    assert trl.message.endswith("1 on every token")


def test_two_updates_leave_one_to_clip() -> None:
    assert "can act in that one alone" in found(SLIME.format(more=""))["clip-updates"].message
