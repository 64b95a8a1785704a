"""Recipes of the other trainers, as their source was read; nothing of them was run."""

from dapolab.recipes.recipe import Batch, Evidence, Recipe
from dapolab.scenario.advantage import GrpoAdvantage, MeanOnlyAdvantage
from dapolab.scenario.aggregation import (
    GenerationWindow,
    SeqMeanTokenMean,
    TokenMean,
    TokenSum,
)
from dapolab.scenario.clip import CispoClip, DppoTvClip, NoClip, PpoClip
from dapolab.scenario.collector import FilterNoRefill, NoFilter
from dapolab.scenario.objective import Kl, Objective, Rejection, SamplerCorrection

_SYMMETRIC = PpoClip(low=0.2, high=0.2)
_SLIME = Evidence("read", "THUDM/slime 624b824", "2026-08-21")
_SLIME_SOURCE = (
    "slime/utils/ppo_utils.py:125-171",
    "slime/backends/megatron_utils/loss.py:1283-1383",
    "slime/ray/rollout.py:608-633",
)
_TINKER = Evidence("read", "thinking-machines-lab/tinker-cookbook 9dfcc3a", "2026-08")
_TINKER_SOURCE = ("tinker built-in losses", "tinker_cookbook/rl/data_processing.py:235")
_TINKER_NOTES = (
    "a plain sum: twice the tokens, twice the update",
    "remove_constant_reward_groups filters without refill and keeps at least one group",
)
_FROM_SAMPLER = SamplerCorrection(bypass=True)
_AGAINST_SAMPLER = Batch(denominator="sampler")

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        id="slime",
        framework="slime",
        version="624b824",
        summary="default: mean over responses of token means",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-6),
            clip=_SYMMETRIC,
            aggregation=SeqMeanTokenMean(),
        ),
        collector=NoFilter(),
        evidence=_SLIME,
        source=_SLIME_SOURCE,
        notes=(
            "unless every prompt has G samples, rewards are normalised over the whole batch",
            "eps_clip_high falls back to eps_clip; no dual clip unless eps_clip_c is set",
        ),
    ),
    Recipe(
        id="slime-per-token",
        framework="slime",
        version="624b824",
        summary="--calculate-per-token-loss: token mean of the step",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-6),
            clip=_SYMMETRIC,
            aggregation=TokenMean(empty_row_tokens=1),
        ),
        collector=NoFilter(),
        evidence=_SLIME,
        source=_SLIME_SOURCE,
        notes=("a fully masked response counts as one token in the denominator",),
    ),
    Recipe(
        id="prime-rl",
        framework="prime-rl",
        version="559b447",
        summary="DPPO mask against the sampler, no std, token mean of the step",
        objective=Objective(
            advantage=MeanOnlyAdvantage(),
            clip=DppoTvClip(low=0.2, high=0.2, cap=None, surrogate="ratio", log_ratio_penalty=1e-3),
            aggregation=TokenMean(),
            sampler=_FROM_SAMPLER,
            degenerate_groups="out",
        ),
        batch=_AGAINST_SAMPLER,
        when_no_signal="skip",
        # Pull 3586 of this day finds the loss gone: pull 3418 took it out for ipo.
        evidence=Evidence("read", "PrimeIntellect-ai/prime-rl 559b447", "by 2026-09-18"),
        source=("src/prime_rl/trainer/rl/loss.py", "src/prime_rl/trainer/rl/train.py:307-323"),
        notes=(
            "removed since (pull 3418, opened 2026-08-27): the default is ipo now",
            "responses of advantage 0 are pruned after the batch was cut: it shrinks",
            "ten empty batches in a row end the run",
        ),
    ),
    Recipe(
        id="prime-rl-ipo",
        framework="prime-rl",
        version="pull 3586",
        summary="IPO, its default since: tokens out that moved by more than 0.3 either way",
        objective=Objective(
            advantage=MeanOnlyAdvantage(),
            clip=NoClip(),
            aggregation=TokenMean(),
            sampler=SamplerCorrection(
                bypass=True,
                rejection=(Rejection(estimator="tv", level="token", scope="token", upper=0.3),),
            ),
            degenerate_groups="out",
        ),
        batch=_AGAINST_SAMPLER,
        when_no_signal="skip",
        evidence=Evidence("read", "PrimeIntellect-ai/prime-rl pull 3586", "2026-09-18"),
        source=("src/prime_rl/trainer/rl/loss.py (ipo_loss_fn)", "configs/trainer.py"),
        notes=(
            "pull 3418 (2026-08) made it the default, with eps 0.1 and 1e-3·(log r)²; 3586 set "
            "0.3 and dropped the penalty",
            "unlike DPPO's mask, whichever way the advantage pushes",
            "later versions cap the ratio at 1e4 as well",
        ),
    ),
    Recipe(
        id="areal",
        framework="AReaL",
        version="4aef98d",
        summary="token mean of each of four PPO mini-batches",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-5),
            clip=_SYMMETRIC,
            aggregation=TokenMean(),
        ),
        batch=Batch(note="ppo_n_minibatches 4: four updates a rollout, three can clip"),
        evidence=Evidence("read", "inclusionAI/AReaL 4aef98d"),
        source=("areal/utils/functional/functional.py:429-559", "areal/api/cli_args.py:42-75"),
        notes=("group normalisation as in its GRPO examples; NormConfig is absent by default",),
    ),
    Recipe(
        id="roll",
        framework="ROLL",
        version="8eb27cc",
        summary="default aggregation: mean of sequence means",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-6),
            clip=_SYMMETRIC,
            aggregation=SeqMeanTokenMean(),
        ),
        collector=NoFilter(),
        # Its rollout mock came with 0.2.0.
        evidence=Evidence("read", "alibaba/ROLL 8eb27cc", "after 2026-02-04"),
        source=("roll/utils/functionals.py:229-282",),
        notes=(
            "dual_clip_loss is off by default; on, c = 1 + 2·pg_clip",
            "query filters accept everything at generate_opt_level 0",
        ),
    ),
    Recipe(
        id="tinker-ppo",
        framework="tinker-cookbook",
        version="9dfcc3a",
        summary="PPO clip against the sampler, no std, raw token sum",
        objective=Objective(
            advantage=MeanOnlyAdvantage(),
            clip=_SYMMETRIC,
            aggregation=TokenSum(),
            sampler=_FROM_SAMPLER,
        ),
        collector=FilterNoRefill(),
        batch=_AGAINST_SAMPLER,
        evidence=_TINKER,
        source=_TINKER_SOURCE,
        notes=_TINKER_NOTES,
    ),
    Recipe(
        id="tinker-cispo",
        framework="tinker-cookbook",
        version="9dfcc3a",
        summary="CISPO, ratio within 0 and 4, raw token sum",
        objective=Objective(
            advantage=MeanOnlyAdvantage(),
            clip=CispoClip(bounds="absolute", low=0.0, high=4.0),
            aggregation=TokenSum(),
            sampler=_FROM_SAMPLER,
        ),
        collector=FilterNoRefill(),
        batch=_AGAINST_SAMPLER,
        evidence=_TINKER,
        source=_TINKER_SOURCE,
        notes=_TINKER_NOTES,
    ),
    Recipe(
        id="ms-swift-dapo",
        framework="ms-swift",
        version="3602360",
        summary="loss_type dapo: divided by the accumulation steps once too often",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-4),
            clip=_SYMMETRIC,
            aggregation=GenerationWindow(variant="ms-swift", filtered_tokens="in"),
        ),
        # 4.6.0 is the first release that undoes the division (pull 10116).
        evidence=Evidence("read", "modelscope/ms-swift 3602360", "by 2026-10-13"),
        source=("swift/rlhf_trainers/grpo_trainer.py:644-694, 1050-1145",),
        notes=(
            "an update is 1/gradient_accumulation_steps of the token mean (ms-swift#10117), up to "
            "4.5.3; 4.6.0 repaired it (2026-10-13, #10116)",
            "tokens masked by overlong_filter stay in the denominator",
            "dynamic_sample falls back to the original batch after 3 resamples",
            "beta is left at 0 here",
        ),
    ),
    Recipe(
        id="open-instruct",
        framework="open-instruct",
        version="e6c3044",
        summary="centred advantages, clip 0.2/0.272, truncated importance sampling",
        objective=Objective(
            advantage=MeanOnlyAdvantage(truncated="count"),
            clip=PpoClip(low=0.2, high=0.272),
            aggregation=TokenMean(),
            sampler=SamplerCorrection(level="token", action="truncate", upper=2.0),
            kl=Kl(place="loss", estimator="k3", coefficient=0.05),
        ),
        collector=FilterNoRefill(),
        evidence=Evidence("read", "allenai/open-instruct e6c3044"),
        source=("open_instruct/grpo_utils.py:504-538", "open_instruct/grpo_fast.py:654-719"),
        notes=(
            "active_sampling off by default: the batch shrinks by what the filter drops",
            "mask_truncated_completions drops rows before the groups are formed: they misalign",
        ),
    ),
)
