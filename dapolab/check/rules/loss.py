"""Loss: an aggregation that is not the one its name says, scale factors, idle KL."""

from collections.abc import Iterator

from dapolab.check.findings import Finding
from dapolab.check.frameworks.trl import WINDOWED
from dapolab.check.frameworks.verl import ACTOR
from dapolab.check.run import Run, newer


def not_global(run: Run) -> Iterator[Finding]:
    """Flag: verl up to 0.7: token-mean of each micro-batch, weighted by rows (field case B01)."""
    if run.framework != "verl" or newer(run.version_text, "0.8.0"):
        return
    if run.reading.text(f"{ACTOR}.loss_agg_mode") != "token-mean":
        return
    if run.loss in ("geo_mean", "sapo", "gspo"):
        return
    yield run.finding(
        "loss-not-global-token-mean",
        "warning",
        "aggregation",
        f"in verl {run.version_text} token-mean is the mean of each micro-batch, weighted by rows: "
        "tokens in short micro-batches count more, and with one response per micro-batch it is "
        "seq-mean-token-mean",
        suggestion="verl >= 0.8 divides by the tokens of the whole mini-batch",
        source="verl#5625, #906; dp_actor.py up to 0.7 (removed 044bbba27, 2026-04-20)",
    )


def trl_window(run: Run) -> Iterator[Finding]:
    """Flag: TRL's dapo family divides by the generation batch, not the update's tokens (B01)."""
    if run.framework != "trl" or run.loss not in WINDOWED:
        return
    window, generation = run.facts.get("window"), run.facts.get("generation")
    if not isinstance(window, int) or not isinstance(generation, int) or window == generation:
        return
    if min(window, generation) < 1:  # refused elsewhere, and no ratio
        return
    if not newer(run.version_text, "1.16"):
        factor = window / generation
        yield run.finding(
            "loss-trl-scale",
            "warning",
            "n_updates",
            f"gradients are scaled by gradient_accumulation_steps / steps_per_generation = "
            f"{window}/{generation} = {factor:.4g}: the effective learning rate changes with it",
            suggestion="TRL 1.16, or equal numbers",
            source="trl#5619, PR #5890, #6024; TRL <= 1.10 grpo_trainer.py",
            certain=not newer(run.version_text, "1.11"),
        )
    elif generation > window:
        yield run.finding(
            "loss-trl-average-window",
            "note",
            "n_updates",
            f"each of the {generation / window:.4g} updates divides by the generation batch's "
            "average tokens per update, not by its own: updates of long answers weigh more",
            source="TRL 1.16 grpo_trainer.py:3168-3173",
        )


def micro_token_mean(run: Run) -> Iterator[Finding]:
    """Flag: TRL's bnpo: token mean of each micro-batch, then the mean of those."""
    window = run.facts.get("window")
    if run.framework != "trl" or run.loss != "bnpo" or window == 1:
        return
    yield run.finding(
        "loss-not-global-token-mean",
        "warning",
        "loss",
        f"bnpo averages over the tokens of each micro-batch, then over {window} of them: the "
        "update depends on how the batch is cut",
        suggestion="loss_type: dapo",
        source="TRL 1.16 grpo_trainer.py:3109-3180",
    )


def masked_tokens_counted(run: Run) -> Iterator[Finding]:
    """Flag: TRL before 1.10: masked truncated answers stay in the denominator (field case B07)."""
    key = "mask_truncated_completions"
    if run.framework != "trl" or run.loss not in WINDOWED or newer(run.version_text, "1.10"):
        return
    if run.reading.flag(key) is not True:
        return
    yield run.finding(
        "loss-masked-tokens-counted",
        "warning",
        key,
        "truncated answers leave the sum and stay in the count of tokens: with a share s of tokens "
        "truncated the update is 1 − s of what it should be, and smaller the more is truncated",
        suggestion="TRL 1.10 or newer",
        source="trl#6369, fixed by #6439 (2026-07)",
        certain=False,
    )


def sequence_weight(run: Run) -> Iterator[Finding]:
    """Flag: TRL, a sequence-level ratio under a token sum weighs each response by its length."""
    if run.framework != "trl" or run.clip_shape != "sequence" or run.loss not in ("dapo", "bnpo"):
        return
    yield run.finding(
        "loss-sequence-length-weight",
        "warning",
        "importance_sampling_level",
        f"sequence-level ratios with loss_type {run.loss}: the same term is summed over all tokens "
        "of a response, so each response weighs by its length",
        suggestion="loss_type: grpo for GSPO",
        source="TRL 1.16 grpo_trainer.py:903",
    )


def gspo_aggregation(run: Run) -> Iterator[Finding]:
    """Flag: verl 0.9.1 no longer forces GSPO's aggregation: the default is token-mean."""
    if run.framework != "verl" or run.loss != "gspo" or not newer(run.version_text, "0.9.1"):
        return
    mode = run.reading.text(f"{ACTOR}.loss_agg_mode")
    if mode != "token-mean":
        return
    yield run.finding(
        "loss-gspo-aggregation",
        "warning",
        "aggregation",
        "gspo with token-mean: verl 0.9.1 aggregates as configured, up to 0.9.0 "
        "seq-mean-token-mean was forced; the same file gives another loss",
        suggestion="loss_agg_mode=seq-mean-token-mean, the GSPO paper's",
        source="verl 0.9.1 core_algos.py:1545-1619; GSPO Eq. 5",
    )


def gmpo_scale(run: Run) -> Iterator[Finding]:
    """Flag: verl's geo_mean: a plain mean over a micro-batch's rows, summed over micro-batches."""
    if run.framework != "verl" or run.loss != "geo_mean":
        return
    mini = run.reading.integer(f"{ACTOR}.ppo_mini_batch_size")
    micro = run.reading.integer(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    gpus = _ranks(run)
    times = ""
    if mini and micro and gpus and run.group_size:
        count = max(1, mini * run.group_size // (micro * gpus))
        times = f", here about {count} times too large"
        if count == 1:
            return
    yield run.finding(
        "loss-gmpo-scale",
        "warning",
        "loss",
        "geo_mean ignores loss_agg_mode and the global batch size: the loss is the sum of "
        f"micro-batch means{times}, and grows with the number of micro-batches",
        suggestion="divide the learning rate by the number of micro-batches, or another loss",
        source="verl 0.9.1 core_algos.py:1928-2011 (0.308 whole, 1.232 as four micro-batches)",
    )


def _ranks(run: Run) -> int | None:
    gpus = run.reading.integer("trainer.n_gpus_per_node")
    nodes = run.reading.integer("trainer.nnodes")
    return gpus * nodes if gpus and nodes else None


def dro_beta(run: Run) -> Iterator[Finding]:
    """Flag: verl: the DRO loss without its β."""
    if run.framework != "verl" or run.loss != "dro":
        return
    key = f"{ACTOR}.policy_loss.dro_beta"
    beta = run.reading.number(key)
    if beta is None and run.reading.value(key) is not None:
        return  # given, and not a number that the file tells
    if beta is not None and beta > 0:
        return
    yield run.finding(
        "loss-dro-beta",
        "error",
        key if run.given(key) else "loss",
        f"dro needs dro_beta > 0, here {'null' if beta is None else f'{beta:g}'}: ValueError at "
        "the first update",
        suggestion=f"{key}=<a positive number>",
        source="verl 0.9.1 core_algos.py:2014-2044",
    )


def sum_norm(run: Run) -> Iterator[Finding]:
    """Flag: verl's seq-mean-token-sum-norm without a constant divides by the padded width (B03)."""
    if run.framework != "verl":
        return
    mode = run.reading.text(f"{ACTOR}.loss_agg_mode")
    constant = run.reading.value(f"{ACTOR}.loss_scale_factor")
    if mode != "seq-mean-token-sum-norm" or constant is not None:
        return
    yield run.finding(
        "loss-sum-norm-no-constant",
        "warning",
        "aggregation",
        "seq-mean-token-sum-norm without loss_scale_factor divides by the padded width of the "
        "batch: the same answers padded wider give a smaller loss",
        suggestion=f"loss_scale_factor={run.cap_tokens or 'the response cap'}",
        source="verl#3741, #4360; verl 0.9.1 core_algos.py:1140-1206",
    )


def token_sum(run: Run) -> Iterator[Finding]:
    """Flag: verl's token-sum: no normalisation at all."""
    if run.framework != "verl" or run.reading.text(f"{ACTOR}.loss_agg_mode") != "token-sum":
        return
    yield run.finding(
        "loss-token-sum",
        "warning",
        "aggregation",
        "token-sum is not normalised: the gradient grows with batch size and answer length",
        suggestion="token-mean, or a learning rate chosen for it and gradient clipping",
        source="verl 0.9.0 4730d46b1 (#7197)",
    )


def sequence_mean_default(run: Run) -> Iterator[Finding]:
    """Flag: slime's default reducer is not DAPO's token-level loss."""
    if run.framework != "slime" or "token means" not in run.aggregation:
        return
    if run.clip_shape == "sequence":
        return  # GSPO's own aggregation (GSPO Eq. 5)
    if run.eps_low is None or run.eps_high is None or run.eps_high <= run.eps_low:
        return
    yield run.finding(
        "loss-not-token-level",
        "note",
        "aggregation",
        "clip-higher as in DAPO, but slime's default is the mean over responses of token means, "
        "not DAPO's token-level loss: a token of a long answer counts less",
        suggestion="--calculate-per-token-loss for the token-level loss",
        source="slime 624b824 backends/megatron_utils/loss.py:1283-1383; DAPO Eq. 12",
    )


RULES = (
    not_global,
    trl_window,
    micro_token_mean,
    masked_tokens_counted,
    sequence_weight,
    gspo_aggregation,
    gmpo_scale,
    dro_beta,
    sum_norm,
    token_sum,
    sequence_mean_default,
)
