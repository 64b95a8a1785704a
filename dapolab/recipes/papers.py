"""Recipes of papers, of the published DAPO runs and of agentic-rl-lab's 06-dapo."""

from dapolab.recipes.recipe import Batch, Evidence, Recipe
from dapolab.scenario.advantage import GrpoAdvantage, MeanOnlyAdvantage
from dapolab.scenario.aggregation import (
    PromptMean,
    SeqMeanTokenMean,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenMeanMicro,
)
from dapolab.scenario.clip import PpoClip
from dapolab.scenario.collector import ExactRefill, FilterNoRefill, NoFilter, Rounds
from dapolab.scenario.objective import Kl, Length, Objective, OverlongPenalty, SamplerCorrection

_CLIP_HIGHER = PpoClip(low=0.2, high=0.28)
_DAPO_BATCH = Batch(prompts=512, group_size=16, responses_per_update=512)

# verl as the published runs had it: token means of dynamic micro-batches weighed by their rows,
# torch.std, dual clip, a penalty that is not clamped (verl.md: commit P).
_DAPO_RUN = Objective(
    advantage=GrpoAdvantage(ddof=1, eps=1e-6, singletons="raw"),
    clip=PpoClip(low=0.2, high=0.28, dual_c=10.0),
    aggregation=TokenMeanMicro(combine="rows"),
    length=Length(
        penalty=OverlongPenalty(cap_tokens=20_480, buffer_tokens=4_096, beyond="unclamped")
    ),
)
_DAPO_RUN_EVIDENCE = Evidence("read", "volcengine/verl 4f80e46", "2025-05-01")
_DAPO_RUN_SOURCE = (
    "recipe/dapo/run_dapo_qwen2.5_32b.sh @4f80e46",
    "verl/workers/actor/dp_actor.py:328-333 @4f80e46",
    "verl/workers/reward_manager/dapo.py @4f80e46",
)
_06 = Evidence("read", "KMnO4-zx/agentic-rl-lab 5fc44d8")
_06_SOURCE = ("06-dapo/train.py:58-76, 172-307", "06-dapo/rollout.py:154-186, 288-359")
_06_BATCH = Batch(
    prompts=4,
    group_size=8,
    denominator="sampler",
    note="one update a step: the clip acts on the sampler–trainer mismatch alone",
)

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        id="seed-reference",
        framework="article",
        version="reference snippet",
        summary="DAPO in a few lines: mixed groups only, std ddof 0, global token mean",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=0, eps=0.0),
            clip=_CLIP_HIGHER,
            aggregation=TokenMean(),
            degenerate_groups="out",
        ),
        collector=FilterNoRefill(),
        when_no_signal="error",
        evidence=Evidence("read", "the DAPO article that this project started from"),
        source=("article, section on executable semantics: dapo_batch",),
        notes=(
            "a group is mixed where max > min of its reward; a std ≤ 1e-6 gives advantage 0",
            "no mixed group in the batch is an error, not a loss of 0",
        ),
    ),
    Recipe(
        id="paper",
        framework="DAPO paper",
        version="2503.14476",
        summary="DAPO Eq. 8–13 as printed: token mean inside each prompt, no dual clip",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=0.0),
            clip=_CLIP_HIGHER,
            aggregation=PromptMean(),
            length=Length(penalty=OverlongPenalty(cap_tokens=20_480, buffer_tokens=4_096)),
            degenerate_groups="out",
        ),
        collector=Rounds(gen_groups=512, max_num_gen_batches=0),
        batch=_DAPO_BATCH,
        when_no_signal="resample",
        evidence=Evidence("read", "arXiv 2503.14476", "2025-03-17"),
        source=("DAPO Eq. 8, 9, 11, 12, 13; Algorithm 1; §4.1",),
        notes=(
            "Eq. 12 normalises inside one prompt; the published runs did not (verl#2776)",
            "the paper does not say which std: ddof 1 here, as in verl",
            "resampling goes on until the buffer is full, without a limit",
        ),
    ),
    Recipe(
        id="dapo-32b-run",
        framework="verl",
        version="4f80e46 (DAPO run)",
        summary="the published 32B run: dual clip 10, token mean of each micro-batch",
        objective=_DAPO_RUN,
        collector=Rounds(gen_groups=1_536, max_num_gen_batches=10),
        batch=_DAPO_BATCH,
        when_no_signal="error",
        evidence=_DAPO_RUN_EVIDENCE,
        source=_DAPO_RUN_SOURCE,
        notes=(
            "AIME24 avg@32 52 % with dynamic sampling, 50 % without, 44 % early (verl-recipe)",
            "use_dynamic_bsz: micro-batches of 22,528 tokens · SP 8, weighed by rows, so the "
            "token mean is not global (verl#5625)",
            "warm-up is 10 updates, not the paper's 20 rollout steps",
            "the filter looks at acc; short after 10 generation batches is a ValueError",
        ),
    ),
    Recipe(
        id="dapo-32b-run-no-ds",
        framework="verl",
        version="4f80e46 (DAPO run)",
        summary="the same run without dynamic sampling",
        objective=_DAPO_RUN,
        collector=NoFilter(),
        batch=_DAPO_BATCH,
        evidence=_DAPO_RUN_EVIDENCE,
        source=_DAPO_RUN_SOURCE,
        notes=("AIME24 avg@32 50 %; groups without spread stay in the denominator",),
    ),
    Recipe(
        id="dapo-early",
        framework="verl",
        version="4f80e46 (DAPO run)",
        summary="the early run: mean of sequence means, no dynamic sampling",
        objective=_DAPO_RUN.model_copy(
            update={"aggregation": SeqMeanTokenMean(empty_rows="in", micro="rows")}
        ),
        collector=NoFilter(),
        batch=_DAPO_BATCH,
        evidence=_DAPO_RUN_EVIDENCE,
        source=_DAPO_RUN_SOURCE,
        notes=("AIME24 avg@32 44 %; a fully masked row gives NaN at this commit",),
    ),
    Recipe(
        id="06-dapo",
        framework="agentic-rl-lab",
        version="5fc44d8",
        summary="06-dapo: exact refill, ratio against the sampler, one update a step",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-8, singletons="error"),
            clip=_CLIP_HIGHER,
            aggregation=TokenMean(),
            sampler=SamplerCorrection(bypass=True),
            length=Length(penalty=OverlongPenalty(cap_tokens=4_096, buffer_tokens=1_024)),
            degenerate_groups="out",
        ),
        collector=ExactRefill(max_candidate_multiplier=2, concurrent_groups=16),
        batch=_06_BATCH,
        when_no_signal="skip",
        evidence=_06,
        source=(*_06_SOURCE, "06-dapo/reward.py:61-81"),
        notes=(
            "the filter looks at raw correctness; a partly filled batch is trained",
            "the article's run had a cap of 8,192 and a buffer of 2,048 tokens",
        ),
    ),
    Recipe(
        id="06-grpo",
        framework="agentic-rl-lab",
        version="5fc44d8",
        summary="06-dapo's GRPO preset: sample mean, symmetric clip, filter without refill",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=1e-8, singletons="error"),
            clip=PpoClip(low=0.2, high=0.2),
            aggregation=SeqMeanTokenMean(),
            sampler=SamplerCorrection(bypass=True),
            degenerate_groups="out",
        ),
        collector=FilterNoRefill(),
        batch=_06_BATCH,
        when_no_signal="skip",
        evidence=_06,
        source=_06_SOURCE,
        notes=("this GRPO filters too: its mean leaves degenerate groups out",),
    ),
    Recipe(
        id="grpo",
        framework="DeepSeekMath paper",
        version="2402.03300",
        summary="GRPO as printed: mean of sequence means, std, KL in the loss",
        objective=Objective(
            advantage=GrpoAdvantage(ddof=1, eps=0.0),
            clip=PpoClip(low=0.2, high=0.2),
            aggregation=SeqMeanTokenMean(),
            kl=Kl(place="loss", estimator="k3", coefficient=0.04),
        ),
        collector=NoFilter(),
        batch=Batch(group_size=64, note="a single update after each exploration stage (§4.2)"),
        evidence=Evidence("read", "arXiv 2402.03300", "2024-02-05"),
        source=("DeepSeekMath Eq. 3, 4; §4.1.2, §4.2",),
        notes=("the paper gives neither ε nor which std: 0.2 and ddof 1 here",),
    ),
    Recipe(
        id="dr-grpo",
        framework="Dr. GRPO paper",
        version="2503.20783",
        summary="GRPO done right: no std, token sums over a constant, no KL",
        objective=Objective(
            advantage=MeanOnlyAdvantage(),
            clip=PpoClip(low=0.2, high=0.2),
            aggregation=SeqMeanTokenSumNorm(constant=3_000),
        ),
        collector=NoFilter(),
        evidence=Evidence("read", "arXiv 2503.20783", "2025-03-26"),
        source=("Understanding R1-Zero-Like Training, §3.2, Listing 1",),
        notes=(
            "the constant is the generation budget of the run (3,000 tokens here); another one "
            "only rescales the learning rate",
        ),
    ),
)
