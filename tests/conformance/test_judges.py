"""Who is judged: every entry of the frameworks' registries has a counterpart or a reason."""

import ast
import importlib.metadata
import inspect
import re
from collections.abc import Callable
from dataclasses import replace

import counterparts_openrlhf as openrlhf_pairs
import counterparts_trl as trl_pairs
import counterparts_verl as pairs
import judges_openrlhf as openrlhf
import judges_trl as trl
import judges_verl as verl
import pytest
import torch
from agreement import EXACT, disagreement
from draws import GROUPS, PAIRED_GROUPS, Draw, draw
from verl.trainer.ppo import core_algos, rollout_corr_helper

from dapolab.objective import Advantages, advantages, kl_estimate
from dapolab.scenario import GrpoAdvantage, Kl

Note = Callable[..., None]


def test_the_judges_are_the_pinned_versions() -> None:
    assert importlib.metadata.version("verl") == "0.9.1"
    assert importlib.metadata.version("trl") == "1.16.0"
    assert importlib.metadata.version("openrlhf") == "0.11.2"


def test_every_policy_loss_of_verl_has_a_counterpart() -> None:
    assert set(verl.POLICY_LOSSES) == set(pairs.CLIPS) | {"bypass_mode"}


def test_every_estimator_of_verl_has_a_counterpart() -> None:
    assert set(verl.ADVANTAGES) == {name.split("/")[0] for name in pairs.ESTIMATORS}


def test_every_aggregation_of_verl_is_judged() -> None:
    source = inspect.getsource(core_algos.agg_loss)
    code = source.split('"""')[2]
    assert set(re.findall(r'"((?:seq|token)-[a-z-]+)"', code)) == set(verl.AGGREGATIONS)


def test_every_kl_estimator_of_verl_is_judged() -> None:
    code = inspect.getsource(core_algos.kl_penalty_forward).split('"""')[2]
    names = set(re.findall(r'"([a-z_0-9]+)"', code))
    assert names == set(verl.KL_ESTIMATORS) | {"full"}  # full raises there: it needs the vocabulary


def test_every_loss_type_and_level_of_trl_is_judged() -> None:
    found = _compared_with("self.loss_type")
    assert found == set(trl.LOSS_TYPES)
    levels = _compared_with("self.importance_sampling_level")
    assert levels == set(trl_pairs.LEVELS)
    assert set(trl_pairs.PAIRS) == {(a, b) for a in found for b in levels}


def test_every_loss_and_gate_of_openrlhf_is_judged() -> None:
    """The words that PolicyLoss accepts, off its source, against those of the judged settings."""
    code = inspect.getsource(openrlhf.PolicyLoss)
    for name in ("level", "mode", "gating"):
        accepted = re.search(rf"is_correction_{name} not in \{{(.*?)\}}", code)
        assert accepted is not None
        words = set(re.findall(r'"(\w+)"', accepted[1]))
        given = [settings for settings, _ in openrlhf_pairs.CORRECTIONS.values()]
        default = {"level": "off", "mode": "mask", "gating": "ratio"}[name]
        assert {s.get(f"is_correction_{name}", default) for s in given} == words
    types = set(re.findall(r'self\.policy_loss_type == "(\w+)"', code))
    given = [settings for settings, _ in openrlhf_pairs.LOSSES.values()]
    assert {s.get("policy_loss_type", "ppo") for s in given} == types


def _compared_with(name: str) -> set[str]:
    """Return the strings that ``_compute_loss`` compares an attribute with."""
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    found: set[str] = set()
    for node in ast.walk(ast.parse("class _:\n" + source)):
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == name:
            constants = [c for c in ast.walk(node) if isinstance(c, ast.Constant)]
            found |= {c.value for c in constants if isinstance(c.value, str)}
    return found


def test_every_rejection_rule_of_verl_is_judged() -> None:
    from test_verl_sampler import REJECTIONS

    assert set(REJECTIONS) == rollout_corr_helper.SUPPORTED_ROLLOUT_RS_OPTIONS


# ---------------------------------------------------------------------------- estimators of verl


@pytest.mark.parametrize("name", pairs.ESTIMATORS)
def test_advantages(name: str, setting: Note) -> None:
    estimator = pairs.ESTIMATORS[name]
    for seed in range(20):
        data = draw(seed, groups=PAIRED_GROUPS if estimator.needs_pairs else GROUPS)
        judge, ours = pairs.judged_advantage(name, data), pairs.our_advantage(name, data)
        found = ours.value.expand(data.mask.shape) * data.mask
        assert disagreement(found, judge) <= 4 * estimator.tolerance
        assert bool((found[data.mask == 0] == 0).all())
    setting("verl:advantage", name, "unequal groups")


@pytest.mark.parametrize("corrected", [False, True], ids=["plain", "sampler weights"])
@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_token_baselines_with_holes_and_sampler_weights(
    name: str, corrected: bool, setting: Note
) -> None:
    """Tool output in the middle of responses: where the two alignments are not the same."""
    apart = 0
    for seed in range(20):
        data = draw(seed)
        generator = torch.Generator().manual_seed(seed)
        holes = (torch.rand(data.mask.shape, generator=generator) < 0.7).double()
        data = replace(data, mask=data.mask * holes)
        weights = (data.old - data.sampler).exp().clamp(max=1.2) if corrected else None
        judge = pairs.judged_advantage(name, data, weights=weights)
        ours = pairs.our_advantage(name, data, weights=weights).value
        assert disagreement(ours, judge) <= 4 * EXACT
        assert bool((ours[data.mask == 0] == 0).all())
        other = pairs.our_advantage(OTHER_ALIGNMENT[name], data, weights=weights).value
        apart += disagreement(other, judge) > 1e-3
    assert apart > 10
    shown = "sampler weights" if corrected else "no weights"
    setting("verl:advantage", name, "holes in the mask", shown)


OTHER_ALIGNMENT = {
    "optimal_token_baseline": "tir_optimal_token_baseline",
    "tir_optimal_token_baseline": "optimal_token_baseline",
}


IN_REWARD = ("grpo", "rloo", "reinforce_plus_plus", "gae", "remax", "optimal_token_baseline")


@pytest.mark.parametrize("estimator", ["kl", "low_var_kl"])
@pytest.mark.parametrize("name", IN_REWARD)
def test_kl_in_the_reward(name: str, estimator: str, setting: Note) -> None:
    """Reward, then KL, then advantage, as verl's trainer does it (ray_trainer.py:78-117)."""
    kl = Kl(
        place="reward",
        estimator="k1" if estimator == "kl" else "k3",
        coefficient=0.2,
        log_ratio_clamp=20.0,
        value_clamp=10.0,
    )
    for seed in range(10):
        data = draw(seed)
        judged_penalty = verl.kl_in_reward(
            old=data.old, reference=data.reference, mask=data.mask, coefficient=0.2,
            estimator=estimator,
        )  # fmt: skip
        penalty = -kl.coefficient * kl_estimate(data.old - data.reference, kl)
        judge = pairs.judged_advantage(name, data, penalty=judged_penalty)
        found = pairs.our_advantage(name, data, penalty=penalty).value.expand(data.mask.shape)
        allowed = max(1e-11, 4 * pairs.ESTIMATORS[name].tolerance)
        assert disagreement(found * data.mask, judge) <= allowed
    setting(f"verl:{estimator} in reward", name, "unequal groups")


WRONG = {
    "grpo": {"ddof": 0},
    "grpo_vectorized": {"eps": 0.05},
    "gdpo": {"weights": (1.0, 0.5 * 1.05)},
    "grpo_passk": {"divide_by_std": False},
    "reinforce_plus_plus": {"gamma": 0.9 * 1.05},
    "gae": {"lam": 0.9 * 1.05},
    "rloo": {"singletons": "zero"},
    "opo": {"singletons": "zero"},
    "reinforce_plus_plus_baseline": {"whiten": False},
    "gpg": {"singletons": "zero"},
    "optimal_token_baseline": {"eps": 0.05},
    "tir_optimal_token_baseline": {"eps": 0.05},
}


@pytest.mark.parametrize("name", WRONG)
def test_an_estimator_that_is_set_wrong_is_rejected(name: str) -> None:
    estimator = pairs.ESTIMATORS[name]
    errors = []
    for seed in range(10):
        data = draw(seed, groups=PAIRED_GROUPS if estimator.needs_pairs else GROUPS)
        twin = estimator.config.model_copy(update=WRONG[name])
        wrong = pairs.Estimator(twin, settings=estimator.settings)
        found = _with(wrong, name, data).value.expand(data.mask.shape) * data.mask
        errors.append(disagreement(found, pairs.judged_advantage(name, data)))
    assert max(errors) > 1e-3


def _with(estimator: pairs.Estimator, name: str, data: Draw) -> Advantages:
    original = pairs.ESTIMATORS[name]
    try:
        pairs.ESTIMATORS[name] = estimator
        return pairs.our_advantage(name, data)
    finally:
        pairs.ESTIMATORS[name] = original


def test_equal_rewards_push_there_and_never_here() -> None:
    """A deliberate difference: 16 rewards of 0.1 in float32 (verl.md §3)."""
    mask = torch.ones(16, 2)
    rewards = torch.full((16,), 0.1)
    per_token = torch.stack([torch.zeros(16), rewards], dim=-1)
    names = ["one prompt"] * 16
    judge, _ = verl.ADVANTAGES["grpo"](per_token, mask, names)
    assert float(judge.abs().max()) > 1e-3
    ours = advantages(rewards, GrpoAdvantage(), group=torch.zeros(16, dtype=torch.int64), mask=mask)
    assert bool((ours.value == 0).all())
