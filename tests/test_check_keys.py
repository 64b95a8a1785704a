"""Unknown keys of slime and NeMo RL: named with the nearest one, and no false alarm."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.check import Finding, check_file, check_text, keys

ROOT = Path(__file__).resolve().parents[1]
SLIME = "python3 train.py --hf-checkpoint m --rollout-batch-size 64 --n-samples-per-prompt 8 "
NEMO = "grpo:\n  num_prompts_per_step: 32\n"
# Arguments of Megatron-LM and SGLang that slime's launch scripts pass.
MEGATRON = """
tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size sequence-parallel
expert-model-parallel-size expert-tensor-parallel-size recompute-granularity recompute-method
recompute-num-layers attention-dropout hidden-dropout accumulate-allreduce-grads-in-fp32
attention-softmax-in-fp32 attention-backend optimizer lr-decay-style weight-decay adam-beta1
adam-beta2 swiglu num-layers hidden-size ffn-hidden-size num-attention-heads group-query-attention
num-query-groups kv-channels normalization norm-epsilon rotary-base vocab-size disable-bias-linear
use-rotary-position-embeddings qk-layernorm add-qkv-bias untie-embeddings-and-output-weights
moe-token-dispatcher-type moe-router-load-balancing-type moe-grouped-gemm optimizer-cpu-offload
use-precision-aware-optimizer overlap-cpu-optimizer-d2h-h2d no-load-optim no-load-rng ckpt-step
log-interval exit-interval eval-iters train-iters loss-scale min-lr lr-warmup-iters wandb-exp-name
memory-snapshot-path save-retain-interval sglang-mem-fraction-static sglang-enable-dp-attention
"""


def ignored(text: str, *, framework: str, version: str | None = None) -> list[Finding]:
    report = check_text(text, framework=framework, version=version)
    return [f for f in report.findings if f.id == "key-ignored"]


# ---------------------------------------------------------------------------- slime


@pytest.mark.parametrize(
    ("written", "meant", "stays"),
    [
        ("--eps-clip-hihg 0.28", "--eps-clip-high", "its default"),
        ("--kl-loss-coeff 0.01", "--kl-loss-coef", "0.0"),
        ("--n-sample-per-prompt 8", "--n-samples-per-prompt", "1"),
        ("--rollout-temprature 0.8", "--rollout-temperature", "1.0"),
        ("--use-rollout-logprob", "--use-rollout-logprobs", "False"),
    ],
)
def test_a_misspelt_argument_of_slime_does_nothing(written: str, meant: str, stays: str) -> None:
    (finding,) = ignored(SLIME + written, framework="slime")
    assert finding.setting == written.split()[0]
    assert finding.suggestion == f"nearest: {meant}"
    assert f"{meant} stays at {stays}" in finding.message
    assert (finding.severity, finding.certain) == ("warning", True)
    correct = SLIME + written.replace(written.split()[0], meant)
    assert not ignored(correct, framework="slime")


def test_arguments_of_megatron_and_sglang_raise_no_alarm() -> None:
    words = " ".join(f"--{name} 1" for name in MEGATRON.split())
    assert not ignored(SLIME + words, framework="slime")


def test_every_argument_of_the_table_is_known() -> None:
    words = " ".join(f"--{name.replace('_', '-')} 1" for name in keys.table("slime")["keys"])
    report = check_text("train.py " + words, framework="slime")
    assert not {f.id for f in report.findings} & {"key-ignored", "keys-not-judged"}


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_doubled_letter_is_found(data: st.DataObject) -> None:
    known = keys.table("slime")["keys"]
    key = data.draw(st.sampled_from(sorted(k for k in known if len(k) > 8)))
    at = data.draw(st.integers(1, len(key) - 1))
    misspelt = key[:at] + key[at - 1] + key[at:]
    found = ignored(f"{SLIME} --{misspelt.replace('_', '-')} 1", framework="slime")
    assert [f.setting for f in found] == [f"--{misspelt.replace('_', '-')}"] * (
        misspelt not in known
    )


def test_another_commit_of_slime_leaves_it_open() -> None:
    (finding,) = ignored(SLIME + "--eps-clip-hihg 0.3", framework="slime", version="0.1")
    assert not finding.certain


# ---------------------------------------------------------------------------- NeMo RL


@pytest.mark.parametrize(
    ("section", "written", "meant", "certain"),
    [
        ("loss_fn", "ratio_clip_maxx", "loss_fn.ratio_clip_max", True),
        ("loss_fn", "use_importance_sampling_corection",
         "loss_fn.use_importance_sampling_correction", True),
        ("grpo", "use_dynamic_samplng", "grpo.use_dynamic_sampling", True),
        ("loss_fn", "entropy_bonus", None, False),
    ],
)  # fmt: skip
def test_an_unknown_key_of_nemo_does_nothing(section, written, meant, certain) -> None:
    text = NEMO + (f"  {written}: 1\n" if section == "grpo" else f"loss_fn:\n  {written}: 1\n")
    (finding,) = ignored(text, framework="nemo-rl")
    assert finding.setting == f"{section}.{written}"
    assert finding.certain == certain
    if meant:
        assert finding.suggestion == f"nearest: {meant}"
        assert not ignored(text.replace(written, meant.partition(".")[2]), framework="nemo-rl")


def test_sections_without_a_table_raise_no_alarm() -> None:
    text = NEMO + "policy:\n  train_globl_batch_size: 512\nlogger:\n  log_dir: logs\n"
    assert not ignored(text, framework="nemo-rl")


def test_every_key_of_nemo_s_table_is_known() -> None:
    text = "\n".join(f"{key}: 1" for key in keys.table("nemo-rl")["keys"])
    report = check_text(text, framework="nemo-rl")
    assert not {f.id for f in report.findings} & {"key-ignored", "keys-not-judged"}


@pytest.mark.parametrize(
    "name", ["nemo_dapo_7b.yaml", "nemo_leave_one_out.yaml", "slime_qwen3_4b.sh"]
)
def test_shipped_configurations_raise_no_alarm(name: str) -> None:
    report = check_file(ROOT / "tests" / "check_configs" / name)
    assert "key-ignored" not in {f.id for f in report.findings}


def test_what_the_checker_reads_is_in_the_tables() -> None:
    """Or it is Megatron's, or another section's."""
    from dapolab.check.frameworks import nemo, slime

    beyond = set(slime.DEFAULTS) - set(keys.table("slime")["keys"])
    assert beyond == {"context_parallel_size", "grpo_std_normalization"}
    beyond = set(nemo.DEFAULTS) - set(keys.table("nemo-rl")["keys"])
    assert {key.partition(".")[0] for key in beyond} == {"policy"}


# ---------------------------------------------------------------------------- the generator


@pytest.fixture(scope="module")
def generate():
    path = ROOT / "requirements" / "generate_keys.py"
    spec = importlib.util.spec_from_file_location("generate_keys", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_keys"] = module
    spec.loader.exec_module(module)
    return module


def test_arguments_are_read_off_a_checkout(generate, tmp_path: Path) -> None:
    file = tmp_path / "slime" / "utils" / "arguments.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "def provider(parser):\n"
        "    parser.add_argument('--eps-clip', type=float, default=0.2, help='x')\n"
        "    parser.add_argument('--colocate', action='store_true')\n"
        "    parser.add_argument('--offload', action=argparse.BooleanOptionalAction)\n"
        "    reset_arg(parser, '--no-norm', action='store_false', dest='norm')\n"
        "    parser.add_argument('--bytes', default=2 * 1024**2)\n"
    )
    table = generate.checkout_document("slime", tmp_path, commit="abc", date="2026-09-01")
    assert table["keys"] == {
        "eps_clip": 0.2,
        "colocate": False,
        "offload": None,
        "no_offload": None,
        "no_norm": False,
        "bytes": None,
    }
    assert (table["version"], table["date"]) == ("abc", "2026-09-01")


def test_fields_are_read_off_nested_classes(generate, tmp_path: Path) -> None:
    bodies = {
        "grpo.py": "class RewardScalingConfig:\n    enabled: bool = False\n"
        "class AsyncGRPOConfig:\n    enabled: bool = False\n"
        "class GRPOConfig:\n    seed: int = 42\n    async_grpo: AsyncGRPOConfig | None = None\n"
        "    reward_shaping: RewardShapingConfig = Field()\n    adv: AdvEstimatorConfig\n",
        "reward_functions.py": "class RewardShapingConfig:\n    buffer: int | None = None\n",
        "advantage_estimator.py": "class AdvEstimatorConfig:\n    name: str = 'grpo'\n",
        "loss/loss_functions.py": "class ClippedPGLossConfig:\n    ratio_clip_min: float = 0.2\n",
    }
    folder = tmp_path / "nemo_rl" / "algorithms"
    (folder / "loss").mkdir(parents=True)
    for name, body in bodies.items():
        (folder / name).write_text(body)
    assert generate.nemo_rl(tmp_path)["keys"] == {
        "grpo.seed": 42,
        "grpo.async_grpo.enabled": False,
        "grpo.reward_shaping.buffer": None,
        "grpo.adv.name": "grpo",
        "loss_fn.ratio_clip_min": 0.2,
    }


def test_the_stored_tables_are_the_generator_s_text(generate) -> None:
    for name in ("slime-002fa9d", "nemo-rl-002cdc2"):
        stored = (ROOT / "dapolab" / "check" / "keys" / f"{name}.json").read_text("utf-8")
        assert generate.text(json.loads(stored)) == stored
