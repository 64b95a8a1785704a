"""The config checker on whole configurations: exactly the findings expected, and nothing else."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from scipy import integrate, special, stats

from dapolab.check import NEWEST, Report, check_config, check_file, check_text
from dapolab.check.workload import from_workload
from dapolab.cli import main
from dapolab.scenario import ConfigError

CONFIGS = Path(__file__).parent / "check_configs"

# file -> (version, ids). The first seven, nemo_dapo, openrlhf_prorlv2 and verl_rollout_correction
# restate configurations that the frameworks ship.
EXPECTED: dict[str, tuple[str | None, list[str]]] = {
    "dapo_32b_published.sh": (
        None,
        [
            "key-rejected",  # reward_model.overlong_buffer.* (verl reference, section 4: probed)
            "clip-updates",  # 512 x 16 = 8192 responses, 32 x 16 = 512 an update
            "clip-dual-on",  # c = 10, not in the paper
            "batch-warmup-units",  # 10 against the paper's 20
            "batch-steps-are-rounds",  # dynamic sampling in the recipe
        ],
    ),
    "verl_grpo_qwen2_7b.sh": (
        None,
        ["clip-updates", "clip-dual-on", "length-clip-ratio-metric"],
    ),
    "dapo_7b_npu.sh": (
        None,
        [
            "key-ignored",  # +reward_model.overlong_buffer.*: accepted, read by nobody
            "clip-updates",
            "clip-dual-on",
            "batch-warmup-units",
            "batch-steps-are-rounds",
        ],
    ),
    "slime_qwen3_4b.sh": (
        None,
        [
            "clip-no-effect",  # 32 x 8 = 256 = global batch size, clip-higher is set
            "loss-kl-coef-zero",
            "loss-not-token-level",
        ],
    ),
    "openrlhf_dapo_0_8.sh": (
        "0.8.0",
        ["keys-not-judged", "clip-updates", "filter-pass-rate-metric"],
    ),
    "dapo06_defaults.txt": (
        None,
        [
            "clip-sampler-mismatch",  # one update, the sampler's log-probs below the ratio
            "length-penalty-flips-sign",
        ],
    ),
    "trl_gspo.yaml": (None, ["clip-updates"]),
    "trl_window.json": (None, ["clip-updates", "loss-trl-average-window"]),
    "trl_mistakes.py": (
        None,
        [
            "key-rejected",
            "loss-not-global-token-mean",
            "clip-no-effect",
            "clip-range-notation",
            "sampling-truncated",
            "batch-masks-can-empty",
        ],
    ),
    "verl_fully_async.sh": (
        None,
        ["key-append-existing", "filter-ignored", "clip-dual-on", "clip-sampler-mismatch"],
    ),
    "nemo_leave_one_out.yaml": (
        None,
        ["filter-leave-one-out", "clip-no-effect", "kl-on-by-default"],  # KL 0.01 unless set
    ),
    "nemo_dapo_7b.yaml": (
        None,
        [
            "length-cap-mismatch",  # the penalty ends at 14336 tokens, the engine at 16384
            "settings-elsewhere",  # defaults: grpo_math_1B.yaml
            "keys-not-judged",
            "clip-dual-on",
        ],
    ),
    "verl_rollout_correction_rloo.sh": (
        None,
        [
            "sampling-correction-ignored",  # weights and loss_type beside bypass_mode
            "advantage-group-of-one",  # rollout.n is 1 unless set: RLOO without others
            "clip-sampler-mismatch",
            "clip-dual-on",
            "length-clip-ratio-metric",
        ],
    ),
    "openrlhf_prorlv2_0_9.sh": (
        "0.9.0",
        ["filter-pass-rate-metric", "clip-updates", "keys-not-judged"],
    ),
    "verl_v1_mistakes.yaml": (
        None,
        [
            "key-rejected",
            "filter-round-size-ignored",
            "clip-ratio-ignored",
            "loss-sum-norm-no-constant",
            "loss-kl-k1",
            "length-context-limit",
            "sampling-truncated",
            "filter-on-shaped-reward",
            "filter-limit-ignored",
            "length-buffer-is-cap",
            "length-penalty-ties",
            "clip-no-effect",
            "length-clip-ratio-metric",
            "length-penalty-flips-sign",
            "clip-dual-on",
        ],
    ),
}


def checked(name: str) -> Report:
    return check_file(CONFIGS / name, version=EXPECTED[name][0])


@pytest.mark.parametrize("name", EXPECTED)
def test_exactly_the_expected_findings(name: str) -> None:
    assert Counter(f.id for f in checked(name).findings) == Counter(EXPECTED[name][1])


def test_every_configuration_is_listed() -> None:
    assert {path.name for path in CONFIGS.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_lines_point_at_the_setting(name: str) -> None:
    lines = (CONFIGS / name).read_text().splitlines()
    for finding in checked(name).findings:
        if finding.line is not None:
            assert finding.setting.lstrip("-").rpartition(".")[2] in lines[finding.line - 1]


@pytest.mark.parametrize("name", EXPECTED)
def test_findings_are_complete_and_sorted(name: str) -> None:
    findings = checked(name).findings
    order = ["error", "warning", "note"]
    ranks = [order.index(f.severity) for f in findings]
    assert ranks == sorted(ranks)
    for f in findings:
        assert f.message
        assert f.source
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", f.id)
        assert f.suggestion or f.severity == "note"


def test_published_script_runs_clean_on_the_release_it_was_written_for() -> None:
    """verl 0.4 knew the old buffer keys; its token-mean was not global (verl#5625)."""
    report = check_file(CONFIGS / "dapo_32b_published.sh", version="0.4.0")
    ids = Counter(f.id for f in report.findings)
    assert report.n_errors == 0
    assert ids["loss-not-global-token-mean"] == 1
    assert ids["length-penalty-flips-sign"] == 1
    assert ids["key-rejected"] == 0
    flips = next(f for f in report.findings if f.id == "length-penalty-flips-sign")
    # theory E1 at G = 16, gap 2, factor 1: u > 2/15; cap 20480, buffer 4096
    assert f"{20480 - 4096 + 4096 * 2 / 15:.0f} tokens" in flips.message
    assert flips.certain  # dapo-math rewards are ±1


def test_numbers_of_the_published_script() -> None:
    report = checked("dapo_32b_published.sh")
    by_id = {f.id: f for f in report.findings}
    assert "16 updates per rollout, 15 of them off-policy" in by_id["clip-updates"].message
    assert "8192 responses, 512 an update" in by_id["clip-updates"].message
    assert "160 optimizer updates" in by_id["batch-warmup-units"].message
    assert "20 rollout steps" in by_id["batch-warmup-units"].message
    assert "reward.reward_kwargs.overlong_buffer_cfg" in by_id["key-rejected"].suggestion


def test_summary_says_what_is_computed() -> None:
    line = checked("dapo_32b_published.sh").summary
    for part in ("token-mean", "[0.8, 1.28]", "dual 10", "grpo", "acc", "1536", "16 updates"):
        assert part in line
    assert "\n" not in line


def test_processes_of_the_launcher_count() -> None:
    """8 processes x 4 responses x 2 micro-batches = 64 responses in a generation of TRL."""
    arguments = (
        "trl/scripts/grpo.py --per_device_train_batch_size 4 --gradient_accumulation_steps 2 "
        "--num_generations 8 --epsilon_high 0.28 --max_completion_length 2048"
    )
    launched = check_text(f"accelerate launch --num_processes 8 {arguments}", name="run.sh")
    assert "(64 responses)" in launched.findings[0].message
    alone = check_text(f"python {arguments}", name="run.sh")
    assert "(8 responses per process)" in alone.findings[0].message


@pytest.mark.parametrize(
    ("window", "generation", "passes", "version", "words"),
    [
        # TRL 1.16 divides by N·window/generation, N the tokens of a generation; <= 1.10 by N
        (4, 4, 1, "1.16.0", "token mean over the update"),
        (4, 4, 2, "1.16.0", "token mean over the update"),
        (4, 4, 2, "1.10.0", "token mean over the update"),
        (2, 8, 1, "1.16.0", "token sum / the generation batch's average tokens per update"),
        (2, 8, 1, "1.10.0", "token sum / the generation batch's tokens"),
        (8, 2, 1, "1.16.0", "token mean of each generation in the update, averaged"),
    ],
)
def test_what_trl_divides_by(
    window: int, generation: int, passes: int, version: str, words: str
) -> None:
    text = (
        f"loss_type: dapo\ngradient_accumulation_steps: {window}\nnum_generations: 8\n"
        f"steps_per_generation: {generation}\nnum_iterations: {passes}\n"
        "per_device_train_batch_size: 8\n"
    )
    assert f"loss dapo, {words};" in check_text(text, version=version).summary


def test_updates_are_unknown_without_the_number_of_processes() -> None:
    text = "generation_batch_size: 512\nper_device_train_batch_size: 8\nnum_generations: 8\n"
    report = check_text(text)
    assert "updates per rollout unknown" in report.summary
    assert not {f.id for f in report.findings} & {"clip-updates", "clip-no-effect"}


def test_cost_of_the_filter_on_a_workload(tmp_path: Path) -> None:
    """Pass rates uniform over prompts: the share of mixed groups is (G - 1)/(G + 1)."""
    workload = tmp_path / "w.toml"
    workload.write_text(
        'kind = "independent"\npass_rate = {kind = "beta", a = 1.0, b = 1.0}\n', encoding="utf-8"
    )
    report = check_file(CONFIGS / "dapo06_defaults.txt", workload=workload)
    cost = next(f for f in report.findings if f.id == "filter-cost")
    assert f"{100 * 7 / 9:.3g} % of groups are mixed" in cost.message
    assert "w.toml" in cost.message
    workload.write_text("kind = 5\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no workload"):
        check_file(CONFIGS / "dapo06_defaults.txt", workload=workload)


def _mixed_logit_normal(mean: float, sd: float) -> float:
    """Return E[1 − p^8 − (1−p)^8] by quadrature over the normal."""

    def at(z: float) -> float:
        p = special.expit(mean + sd * z)
        return float((1 - p**8 - (1 - p) ** 8) * stats.norm.pdf(z))

    return float(integrate.quad(at, -10, 10)[0])


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ('kind = "independent"\npass_rate = {kind = "fixed", p = 0.5}\n', 1 - 2 / 256),
        ('kind = "independent"\npass_rate = {kind = "p_mixed", p_mixed = 0.3}\n', 0.3),
        (
            'kind = "independent"\n'
            'pass_rate = {kind = "logit_normal", mean_logit = 0.5, sd_logit = 1.5}\n',
            _mixed_logit_normal(0.5, 1.5),
        ),
        # joint unless it says otherwise; what nobody solves is never mixed
        (
            "[workload]\nmean_logit = 0.5\nsd_logit = 1.5\nunsolvable_share = 0.25\n",
            0.75 * _mixed_logit_normal(0.5, 1.5),
        ),
    ],
)
def test_the_share_of_mixed_groups_of_a_workload(text: str, share: float, tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text(text, encoding="utf-8")
    found = from_workload(path, group_size=8)
    assert found.p_mixed == pytest.approx(share, rel=1e-6)
    assert from_workload(path, group_size=9).p_mixed != found.p_mixed or share == 0.3


def test_a_workload_without_a_closed_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text('kind = "replay"\nfile = "r.parquet"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="no closed form; use --pass-rate"):
        from_workload(path, group_size=8)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no TOML"):
        from_workload(path, group_size=8)


def _verl_loss(*words: str) -> dict[str, str]:
    """Return the findings on the loss of a verl command: 16 × 8 responses an update, 8 GPUs."""
    actor = "actor_rollout_ref.actor."
    given = [
        "data.train_batch_size=64",
        f"{actor}ppo_mini_batch_size=16",
        "actor_rollout_ref.rollout.n=8",
        *(f"{actor}{word}" if not word.startswith("trainer.") else word for word in words),
    ]
    report = check_text(f"python3 -m verl.trainer.main_ppo {' '.join(given)}", name="run.sh")
    return {f.id: f.message for f in report.findings if f.id.startswith("loss-")}


def test_what_is_said_of_verls_losses() -> None:
    gmpo, gpus = "policy_loss.loss_mode=geo_mean", ("trainer.n_gpus_per_node=8", "trainer.nnodes=1")
    # 128 responses over 8 GPUs × 4: four micro-batches; × 16: one, nothing is summed
    four = _verl_loss(gmpo, "ppo_micro_batch_size_per_gpu=4", *gpus)
    assert "here about 4 times too large" in four["loss-gmpo-scale"]
    assert "loss-gmpo-scale" not in _verl_loss(gmpo, "ppo_micro_batch_size_per_gpu=16", *gpus)
    assert "loss-gmpo-scale" not in _verl_loss("ppo_micro_batch_size_per_gpu=4", *gpus)
    dro, beta = "policy_loss.loss_mode=dro", "policy_loss.dro_beta="
    assert "here null" in _verl_loss(dro)["loss-dro-beta"]
    assert "here 0:" in _verl_loss(dro, f"{beta}0")["loss-dro-beta"]
    assert "loss-dro-beta" not in _verl_loss(dro, f"{beta}0.1")
    assert "loss-dro-beta" not in _verl_loss(dro, f"{beta}$BETA")
    assert "loss-token-sum" in _verl_loss("loss_agg_mode=token-sum")
    assert "loss-token-sum" not in _verl_loss("loss_agg_mode=token-mean")
    gspo = "policy_loss.loss_mode=gspo"
    assert "loss-gspo-aggregation" in _verl_loss(gspo, "loss_agg_mode=token-mean")
    assert "loss-gspo-aggregation" not in _verl_loss(gspo, "loss_agg_mode=seq-mean-token-mean")


def test_versions() -> None:
    """1.16 is 1.16.0, v1.10 is 1.10; a word is refused."""
    window = CONFIGS / "trl_window.json"
    short, full = (check_file(window, version=v).findings for v in ("1.16", "1.16.0"))
    assert [f.id for f in short] == [f.id for f in full]
    assert "loss-trl-scale" in {f.id for f in check_file(window, version="v1.10").findings}
    with pytest.raises(ConfigError, match="--version"):
        check_file(window, version="newest")


# --------------------------------------------------------------------------------- the command


def test_exit_codes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["check", str(CONFIGS / "dapo06_defaults.txt")]) == 0
    assert main(["check", str(CONFIGS / "dapo_32b_published.sh")]) == 1
    capsys.readouterr()
    unreadable = {"empty.yaml": b"", "binary.sh": b"\xff\xfe\x00\x80", "list.yaml": b"- 1\n- 2\n"}
    for name, data in unreadable.items():
        (tmp_path / name).write_bytes(data)
        assert main(["check", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert name in error
    assert main(["check", str(tmp_path / "absent.yaml")]) == 2


def test_json_contract(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", str(CONFIGS / "trl_mistakes.py"), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "check"
    assert document["framework"] == "trl"
    assert document["version"] == NEWEST["trl"]
    wanted = {"id", "severity", "certain", "setting", "line", "message", "suggestion", "source"}
    assert all(set(finding) == wanted for finding in document["findings"])
    assert {f["line"] for f in document["findings"] if f["id"] == "clip-range-notation"} == {8}


def test_output_fits_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main(["check", str(CONFIGS / "verl_v1_mistakes.yaml")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("line 10" in line for line in lines)


def test_check_loads_nothing_heavy() -> None:
    code = (
        "import sys; from dapolab.cli import main; "
        f"main(['check', {str(CONFIGS / 'dapo06_defaults.txt')!r}, '--pass-rate', '.3']); "
        "print([m for m in ('torch', 'simpy', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_framework_can_be_named_and_wrong_names_are_refused() -> None:
    ids = [f.id for f in check_config("clip: 1\nepsilon: 0.2\n", framework="trl")]
    assert "key-rejected" in ids
    with pytest.raises(ConfigError, match="--framework"):
        check_text("a: 1\nb: 2\n")
    with pytest.raises(ConfigError, match="one of"):
        check_text("a: 1\n", framework="torchforge")
    with pytest.raises(ConfigError, match="between 0 and 1"):
        check_text("--groups-per-step 4", pass_rate=1.5)
