"""The checker's key tables and its verdicts on keys, judged by hydra, verl 0.9.1 and TRL 1.16.0."""

import importlib.util
import json
import random
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from trl import GRPOConfig

from dapolab.check import check_text, keys

ROOT = Path(__file__).resolve().parents[2]
LAUNCHES = {
    "ppo_trainer": "python -m verl.trainer.main_ppo",
    "ppo_megatron_trainer": "python -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer",
    "fully_async_ppo_trainer": "python -m verl.experimental.fully_async_policy.fully_async_main",
}


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_keys", ROOT / "requirements" / "generate_keys.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_keys"] = module
    spec.loader.exec_module(module)
    return module


GENERATE = generator()


@pytest.mark.parametrize("package", ["verl", "trl", "openrlhf"])
def test_stored_tables_are_those_of_the_packages(package: str) -> None:
    stored = ROOT / "dapolab" / "check" / "keys" / f"{package}-{keys.NEWEST[package]}.json"
    assert json.loads(stored.read_text("utf-8")) == json.loads(
        GENERATE.text(GENERATE.document(package))
    )


def hydra_accepts(config: str, override: str) -> bool:
    """Say whether verl's configuration composes with this override."""
    root = GENERATE.package_folder("verl")
    search = f"hydra.searchpath=[file://{root / 'trainer/config'}]"
    folder = str(root / GENERATE.VERL_CONFIGS[config])
    with warnings.catch_warnings(), initialize_config_dir(folder, version_base=None):
        warnings.simplefilter("ignore")
        try:
            compose(config, overrides=[search, override])
        except HydraException:
            return False
    return True


def checker_accepts(config: str, override: str) -> bool:
    """Say whether the checker finds no reason for hydra to refuse this override."""
    refused = {"key-rejected", "key-append-existing"}
    found = check_text(f"{LAUNCHES[config]} {override}", name="run.sh").findings
    return not any(f.id in refused for f in found)


def sampled(config: str, n: int) -> list[str]:
    """Return overrides of known keys, misspelt, appended, forced and deleted."""
    rng = random.Random(f"{config} 7")
    known = [k for k in sorted(keys.verl_keys(config)) if "_target_" not in k and "hydra" not in k]
    overrides = []
    for key in rng.sample(known, n):
        cut = rng.randrange(key.rfind(".") + 2, len(key)) if len(key) > key.rfind(".") + 2 else -1
        misspelt = key[:cut] + "x" + key[cut:]
        made = (f"{key}=1", f"{misspelt}=1", f"+{key}=1", f"+{misspelt}=1", f"++{key}=1")
        overrides.append(rng.choice(made))
    return overrides


CASES = [
    "reward_model.overlong_buffer.enable=True",
    "+reward_model.overlong_buffer.enable=True",
    "reward.reward_kwargs.max_resp_len=100",
    "+reward.reward_kwargs.max_resp_len=100",
    "+trainer.val_before_train=True",
    "actor_rollout_ref.actor.use_token_level_loss=True",
    "actor_rollout_ref.actor.clip_ratio_hihg=0.28",
    "algorithm.filter_groups.enable=True",
    "+algorithm.filter_groups.enable=True",
    "+trainer.default_hdfs_dir=/tmp",
    "+actor_rollout_ref.rollout.name=vllm",
    "+data.custom_cls=1",
    "data.apply_chat_template_kwargs.enable_thinking=False",
    "+data.apply_chat_template_kwargs.enable_thinking=False",
    "actor_rollout_ref.rollout.n=8",
]


@pytest.mark.parametrize("config", LAUNCHES)
def test_verdict_on_a_key_is_hydras(config: str) -> None:
    cases = CASES if config == "ppo_trainer" else CASES[:2]
    for override in [*cases, *sampled(config, 12)]:
        assert checker_accepts(config, override) == hydra_accepts(config, override), override


def build(settings: dict[str, Any], folder: Path) -> type[Exception] | None:
    """Return the error with which GRPOConfig refuses these settings, None where it takes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            GRPOConfig(output_dir=str(folder), use_cpu=True, bf16=False, **settings)
        except (ValueError, TypeError) as error:
            return type(error)
    return None


@pytest.mark.parametrize(
    "settings",
    [
        {"num_generations": 8, "per_device_train_batch_size": 8},
        {"num_generations": 1},
        {"num_generations": 8, "generation_batch_size": 64, "steps_per_generation": 8},
        {"num_generations": 6, "generation_batch_size": 64, "per_device_train_batch_size": 8},
        {"num_generations": 8, "generation_batch_size": 64, "per_device_train_batch_size": 8},
        {"max_completion_lenght": 5},
        {"epsilon_hi": 0.28},
        {"epsilon": 0.2, "epsilon_high": 0.28},
        {"steps_per_generation": 4, "num_iterations": 2},
    ],
    ids=str,
)
def test_verdict_on_a_grpo_config_is_trls(settings: dict[str, Any], tmp_path: Path) -> None:
    report = check_text(json.dumps(settings), framework="trl")
    assert (report.n_errors > 0) == (build(settings, tmp_path) is not None)


@pytest.mark.parametrize("seed", range(40))
def test_every_field_is_known_and_its_misspelling_is_not(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    name = rng.choice(sorted(keys.table("trl")["keys"]))
    cut = rng.randrange(1, len(name))
    for key in (name, name[:cut] + name[cut - 1] + name[cut:]):
        rejected = any(
            f.id == "key-rejected"
            for f in check_text(json.dumps({key: None}), framework="trl").findings
        )
        known = key in GRPOConfig.__dataclass_fields__
        assert rejected != known
        if not known:
            assert build({key: None}, tmp_path) is TypeError
