"""The checker on sampler corrections: what acts, what is skipped, what stops the run."""

import pytest

from dapolab.check import Report, check_text

CORRECTION = "algorithm.rollout_correction"
LOSS = "actor_rollout_ref.actor.policy_loss"
NO_LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs=False"
V1 = "python3 -m verl.trainer.main_ppo"
LEGACY = f"{V1} trainer.use_v1=False"
ASYNC = "python3 -m verl.experimental.fully_async_policy.fully_async_main"
SIZES = (
    "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16 "
    "actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.use_dynamic_bsz=True"
)
ASYNC_SIZES = SIZES.replace("size=64", "size=0 data.gen_batch_size=1", 1)


def verl(launch: str, *settings: str) -> Report:
    sizes = ASYNC_SIZES if launch == ASYNC else SIZES
    return check_text(" ".join((launch, sizes, *settings)), name="run.sh")


def severities(report: Report) -> dict[str, str]:
    return {finding.id: finding.severity for finding in report.findings}


@pytest.mark.parametrize(
    "setting",
    [
        f"{CORRECTION}.rollout_is=token",
        f"{CORRECTION}.rollout_rs=seq_mean_k1",
        f"{CORRECTION}.loss_type=reinforce",
    ],
)
@pytest.mark.parametrize("launch", [V1, LEGACY, ASYNC], ids=["V1", "legacy", "fully async"])
def test_bypass_reads_nothing_beside_it(launch: str, setting: str) -> None:
    """V1 keeps the loss; the others switch it after the workers copied theirs (conformance)."""
    bypass = f"{CORRECTION}.bypass_mode=True"
    id = "sampling-correction-ignored"
    report = verl(launch, bypass, setting)
    assert severities(report)[id] == "warning"
    assert "loss PPO" in report.summary
    assert id not in severities(verl(launch, bypass))
    assert id not in severities(verl(launch, f"{CORRECTION}.bypass_mode=False", setting))


def test_the_bypass_loss_by_name_reads_the_actors_own_table() -> None:
    words = (f"{CORRECTION}.bypass_mode=True", f"{LOSS}.loss_mode=bypass_mode")
    own = f"+{LOSS}.rollout_correction"
    assert "loss reinforce" in verl(LEGACY, *words, f"{own}.loss_type=reinforce").summary
    assert "loss PPO" in verl(LEGACY, *words).summary
    other = verl(LEGACY, *words, f"{CORRECTION}.loss_type=reinforce")
    assert severities(other)["sampling-correction-ignored"] == "warning"
    id = "sampling-weights-unused"
    assert id in severities(verl(LEGACY, *words, f"{own}.rollout_is=token"))
    both = (f"{own}.rollout_is=token", f"{own}.loss_type=reinforce")
    assert id not in severities(verl(LEGACY, *words, *both))


@pytest.mark.parametrize(
    ("launch", "setting", "severity"),
    [
        (V1, f"{CORRECTION}.rollout_is=token", "warning"),
        (LEGACY, f"{CORRECTION}.rollout_rs=token_k1", "warning"),
        (V1, f"{CORRECTION}.bypass_mode=True", "error"),
        (ASYNC, f"{CORRECTION}.bypass_mode=False", "error"),
    ],
)
def test_log_probs_that_nobody_computes(launch: str, setting: str, severity: str) -> None:
    id = "sampling-no-log-probs"
    assert severities(verl(launch, setting, NO_LOG_PROBS))[id] == severity
    assert id not in severities(verl(launch, setting))


def test_no_log_probs_are_fine_where_nobody_asks() -> None:
    assert "sampling-no-log-probs" not in severities(verl(V1, NO_LOG_PROBS))


def test_the_summary_names_the_correction_that_acts() -> None:
    on = f"{CORRECTION}.rollout_is=token"
    assert "sampler correction rollout_is token up to 2.0" in verl(V1, on).summary
    for off in (NO_LOG_PROBS, f"{CORRECTION}.bypass_mode=True"):
        assert "sampler correction" not in verl(V1, on, off).summary
    assert "sampler correction" not in verl(V1).summary


def test_the_summary_names_vllm_s_correction() -> None:
    """TRL 1.16's default is to mask sequences whose weight is above 3."""
    text = "loss_type: dapo\nnum_generations: 8\nper_device_train_batch_size: 8\n"
    assert "vLLM" not in check_text(text).summary
    on = text + "use_vllm: true\n"
    assert "vLLM correction sequence_mask, weights within [–, 3]" in check_text(on).summary
    assert "vLLM" not in check_text(on + "vllm_importance_sampling_correction: false\n").summary
    assert "within [–, 2]" in check_text(on + "vllm_importance_sampling_cap: 2.0\n").summary


@pytest.mark.parametrize(("batches", "syncs"), [(4, 4), (1, 8)])
def test_fully_async_counts_updates_between_weight_syncs(batches: int, syncs: int) -> None:
    report = verl(
        ASYNC,
        f"async_training.require_batches={batches}",
        f"async_training.trigger_parameter_sync_step={syncs}",
    )
    assert f"{batches * syncs} updates from one weight sync to the next" in report.summary
    assert f"({syncs} x {batches})" in report.summary
    (finding,) = (f for f in report.findings if f.id == "clip-sampler-mismatch")
    assert f"{batches * syncs} updates from one weight sync to the next" in finding.message


def test_top_p_cites_the_framework_at_hand() -> None:
    trl = check_text("loss_type: dapo\nnum_generations: 8\ntop_p: 0.9\n")
    run = verl(V1, "actor_rollout_ref.rollout.top_p=0.9")
    for report, name in ((trl, "TRL"), (run, "verl")):
        (finding,) = (f for f in report.findings if f.id == "sampling-truncated")
        assert finding.source.startswith(name)


def test_dro_needs_its_beta() -> None:
    dro = "actor_rollout_ref.actor.policy_loss.loss_mode=dro"
    beta = "actor_rollout_ref.actor.policy_loss.dro_beta"
    assert severities(verl(V1, dro))["loss-dro-beta"] == "error"
    assert severities(verl(V1, dro, f"{beta}=0"))["loss-dro-beta"] == "error"
    assert "loss-dro-beta" not in severities(verl(V1, dro, f"{beta}=0.1"))
    assert "loss-dro-beta" not in severities(verl(V1))
