"""Pages on what a loss does to a toy policy: length bias, clipping, overlong answers, filters."""

from dapolab.studies.bandits import Part, bandit_study

_CLASSES = "length-classes"
_SEQ_MEAN = "seq-mean-token-mean"
_SUM = "seq-mean-token-sum-norm+aggregation.constant=55"

LENGTH_BIAS = bandit_study(
    "length_bias",
    title="Length bias of loss aggregation",
    question="which way does a loss push the length of right and of wrong answers?",
    lead="Averaging each answer over its own length pushes wrong answers longer and right ones "
    "shorter **where the policy can tell them apart while it writes**: both start at 55 tokens and "
    f"end at {{{_CLASSES}|{_SEQ_MEAN}|length/wrong}} and {{{_CLASSES}|{_SEQ_MEAN}|length/right}}. "
    "Token mean has a seventeenth of that push at the first update, but it adds up over 400: "
    f"{{{_CLASSES}|token-mean|length/wrong}} and {{{_CLASSES}|token-mean|length/right}}. Sums have "
    f"none: {{{_CLASSES}|{_SUM}|length/wrong}} and {{{_CLASSES}|{_SUM}|length/right}}. **The mean "
    "of all answers falls all the same**, from 55 to "
    f"{{{_CLASSES}|{_SEQ_MEAN}|length/mean}}, because right answers become likely. Where "
    "correctness and length share nothing, no aggregation moves the expected length: all six modes "
    "keep the 37 tokens of the start within their intervals. Crossed with the two other suspects, "
    f"averaging lengthens wrong answers by {{three-paths|aggregation|length/wrong}} tokens and std "
    f"by {{three-paths|std|length/wrong}}; the effects do not add up, as every interaction differs "
    "from zero.",
    parts=(
        Part(
            "length_classes",
            "Right and wrong, short and long",
            "Four answers, {right, wrong} × {10, 100} tokens: the smallest policy in which length "
            "and correctness are separate choices (Liu et al. 2025, Dr. GRPO, section 3).",
        ),
        Part(
            "eos_hazard",
            "Every token may be the last",
            "A policy that decides at every token whether to stop, with its own parameter for "
            "right and wrong answers.",
        ),
        Part(
            "shared_length",
            "One length parameter for both",
            "Correctness is independent of length and the policy cannot tell: the sentence "
            "“GRPO makes answers longer” has no object here.",
        ),
        Part(
            "three_paths",
            "Three entrances, crossed",
            "Reward shaping, division by the group's std, and aggregation are blamed for the "
            "same thing. A 2 × 2 × 2 design on paired seeds separates them.",
        ),
    ),
    n_seeds=400,
)
CLIP = bandit_study(
    "clip",
    title="What clipping does to a policy",
    question="does clip-higher raise entropy, and what does a clip silence?",
    lead="**Whether a higher clip raises or lowers entropy depends on what is likely and what is "
    "right.** From a clip at 1 + 0.2 to one at 1 + 0.5 (high = 0.2 and 0.5) entropy falls from "
    "{many-arms-likely-right|clip.high=0.2|entropy/answer} to "
    "{many-arms-likely-right|clip.high=0.5|entropy/answer} nats where the likely answer is right, "
    "rises from {many-arms-random|clip.high=0.2|entropy/answer} to "
    "{many-arms-random|clip.high=0.5|entropy/answer} where right ones are drawn by lot, and a "
    "little, from {many-arms-likely-wrong|clip.high=0.2|entropy/answer} to "
    "{many-arms-likely-wrong|clip.high=0.5|entropy/answer}, where the likely one is wrong. No clip "
    "at all ends lowest in every case. A clip does not cap what a rare right answer gains: one "
    "rollout takes a probability of 0.01 to {rare-token|clip.high=0.2|reward/accuracy|1} with high "
    "= 0.2 and to {rare-token|clip.high=0.5|reward/accuracy|1} with 0.5, about five times and not "
    "to be told apart: the clip stops the answer's own gradient, not the wrong answers' push on "
    "it. Without any clip it is {rare-token|no-clip|reward/accuracy|1}. Against a sampler that is "
    "not the policy, importance weights, truncated ones (TIS) and a band of them (IcePop) take the "
    "bias of the first gradient from "
    "{mismatch|no-correction|gradient/bias_share} to {mismatch|importance|gradient/bias_share}, "
    "{mismatch|tis|gradient/bias_share} and {mismatch|icepop|gradient/bias_share}, at more spread; "
    "here that buys no pass rate. A PPO clip about the sampler in place of the policy (bypass) has "
    "the largest bias, {mismatch|bypass+ppo|gradient/bias_share}.",
    parts=(
        Part(
            "rare_token",
            "A right answer of probability 0.01",
            "How far one rollout of 32 updates can raise it (DAPO section 3.1 argues from such a "
            "token).",
        ),
        Part(
            "many_arms",
            "Thirty answers, the likely one right",
            "One answer has most of the probability, and it is right.",
            settings={"case": "likely_right"},
        ),
        Part(
            "many_arms",
            "Thirty answers, the likely one wrong",
            "The same policy, but the likely answer is wrong.",
            settings={"case": "likely_wrong"},
        ),
        Part(
            "many_arms",
            "Thirty answers, right ones at random",
            "Right and wrong drawn by lot.",
            settings={"case": "random"},
        ),
        Part(
            "mismatch",
            "A sampler that is not quite the policy",
            "Truncated importance weights (TIS), a band (IcePop) and bypass, with the exact bias "
            "and spread of the first gradient.",
        ),
    ),
    n_seeds=400,
)
OVERLONG = bandit_study(
    "overlong",
    title="Overlong answers: punish, mask, or leave",
    question="what do overlong shaping and masking teach, besides being short?",
    lead="Right answers get shorter under every rule, and wrong ones longer; the rules differ in "
    "how much. Against no rule the soft penalty takes right answers from "
    "{overlong|no-length-rule|length/right} to {overlong|overlong|length/right} tokens and wrong "
    "ones from {overlong|no-length-rule|length/wrong} to {overlong|overlong|length/wrong}, and the "
    "pass rate gains. Masking cut answers takes away their bad example and does the opposite: "
    "wrong ones end at {overlong|mask-truncated|length/wrong}, or at "
    "{overlong|exclude-truncated|length/wrong} when the baseline leaves them out too, and the pass "
    "rate falls from {overlong|no-length-rule|reward/accuracy} to "
    "{overlong|mask-truncated|reward/accuracy} and {overlong|exclude-truncated|reward/accuracy}. A "
    "filter on shaped rewards keeps "
    "{overlong|overlong+filter-shaped|rollout/effective_group_ratio} of the groups at the end, one "
    "on raw rewards {overlong|overlong+filter-raw|rollout/effective_group_ratio}: the groups that "
    "only the first keeps differ in length alone, and its pass rate is lower: "
    "{overlong|overlong+filter-shaped|reward/accuracy} "
    "against {overlong|overlong+filter-raw|reward/accuracy}.",
    parts=(
        Part(
            "overlong",
            "Lengths against a cap",
            "Six ways to treat answers near or beyond the cap (DAPO section 3.4).",
        ),
    ),
    n_seeds=400,
)
DYNAMIC_SAMPLING = bandit_study(
    "dynamic_sampling",
    title="What dynamic sampling trains on",
    question="which prompts does the filter move the training to?",
    lead="**The filter moves the training to no other prompts: it takes larger steps.** Its first "
    "step gains {difficulty-ladder|mean_only+filter-raw|first/reward/accuracy} of pass rate per "
    "unit of learning rate, and {difficulty-ladder|mean_only|first/reward/accuracy} without; "
    "compared at equal pass rate (last table) no prompt differs by half a point. The price is "
    "groups that are thrown away: with filter and std together only "
    "{difficulty-ladder|grpo+filter-raw|rollout/effective_group_ratio} of those sampled are mixed "
    "at the end. Dividing by the std enlarges the step more "
    "({difficulty-ladder|grpo|first/reward/accuracy}) and does turn it a little, towards hard "
    "and easy prompts, away from the middle.",
    parts=(
        Part(
            "difficulty_ladder",
            "Prompts from hard to easy",
            "Std normalisation and dynamic sampling, crossed, on prompts of known pass rates.",
        ),
    ),
    n_seeds=400,
)
