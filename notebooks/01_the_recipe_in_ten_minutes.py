# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The recipe in ten minutes
#
# DAPO is GRPO with four changes: clip-higher, dynamic sampling, a token-level loss, and soft
# overlong punishment. Each is one line of arithmetic. Here is each line, on numbers, and at the
# end the same four lines as frameworks really run them.

# %%
import numpy as np
import pandas as pd

from dapolab.recipes import differences, find, formula, slope, weights
from dapolab.recipes.example import advantages
from dapolab.report import FigureSpec, Table
from dapolab.report.fit_figures import curves
from dapolab.rules import keep_group, shaped_reward

GRPO, PAPER, RUN = find("grpo"), find("paper"), find("dapo-32b-run")

# %%
print(formula(GRPO.objective), formula(PAPER.objective), sep="\n\nand DAPO as printed:\n")

# %% [markdown]
# **How to read this.** $A$ is the advantage of an answer, $r$ the ratio of new to old probability
# of a token, $L$ what is minimised. Everything below compares these two blocks line by line.
#
# ## 1. Dynamic sampling: which groups teach anything
#
# An advantage is a reward minus its group's mean, over its std. Eight answers, $k$ of them right:

# %%
groups = {k: (1.0,) * k + (-1.0,) * (8 - k) for k in (0, 1, 4, 7, 8)}
advantage = {k: advantages(PAPER.objective.advantage, rewards) for k, rewards in groups.items()}
rows = [
    {
        "right of 8": k,
        "kept": keep_group(rewards),
        "A of a right answer": advantage[k][0] if k else None,
        "A of a wrong answer": advantage[k][-1] if k < 8 else None,
    }
    for k, rewards in groups.items()
]
Table(pd.DataFrame(rows), "DAPO keeps the groups that are neither all right nor all wrong.")

# %% [markdown]
# **How to read this.** In the first and the last row every advantage is 0: the answers cost
# rollout time and teach nothing. The filter changes no gradient of the others; it changes how many
# of them are in the batch, and how long the trainer waits for it (notebook 02). A right answer in
# a hard group ($k=1$) counts seven times as much as one in an easy group ($k=7$).
#
# ## 2. Token-level loss: how much one token weighs
#
# Two prompts; the first has answers of 10 and 100 tokens, the second one answer of 1,000.

# %%
lengths, prompts = (10, 100, 1000), (0, 0, 1)
weigh = {
    recipe.id: weights(recipe.objective, lengths, groups=prompts, micro_rows=micro)
    for recipe, micro in ((GRPO, None), (PAPER, None), (RUN, 1), (find("verl-0.9.1"), 1))
}
rows = [
    {"recipe": name}
    | {f"of {n:,}": w * n / np.dot(per, lengths) for n, w in zip(lengths, per, strict=True)}
    for name, per in weigh.items()
]
Table(pd.DataFrame(rows).round(3), "Share of the update that each answer gets, equal advantages.")

# %% [markdown]
# **How to read this.** GRPO gives each answer a third, so a token of the short one weighs a
# hundred times a token of the long one. “Token-level” shares by tokens, but over what? The paper's
# formula averages inside each prompt; the published run averaged inside each micro-batch, and with
# one answer a micro-batch that *is* GRPO's weighting; verl 0.9.1 averages over the whole
# mini-batch.
#
# ## 3. Clip-higher: up to which ratio a token is still pushed

# %%
ratio = np.linspace(0.5, 1.6, 111)
lines = {
    f"{recipe.id}, A {'> 0' if a > 0 else '< 0'}": (
        np.array([slope(recipe.objective.clip, float(r), advantage=a) for r in ratio]),
        colour,
        style,
    )
    for recipe, style in ((GRPO, "--"), (PAPER, "-"))
    for a, colour in ((1.0, "#1f6fb4"), (-1.0, "#b4501f"))
}
FigureSpec(
    name="clip",
    figure=curves(ratio, lines, x_label="ratio π/π_old", y_label="push per A", x_decimals=1),
    title="What the clip leaves of a token's gradient",
    alt="With A > 0 the push ends at ratio 1.2 under GRPO and at 1.28 under DAPO; with A < 0 both "
    "end below 0.8.",
    how_to_read="A line at 0 is a token that has no gradient left. Only the upper end for right "
    "answers moves, from 1.2 to 1.28. At ratio 1, the first update of a rollout, nothing is cut.",
)

# %% [markdown]
# ## 4. Overlong punishment: what a length costs
#
# DAPO's numbers: a cap of 20,480 tokens whose last 4,096 are a buffer.

# %%
rule = {"cap_tokens": 20_480, "buffer_tokens": 4_096}
rows = [
    {
        "tokens": n,
        "right": shaped_reward(True, n_tokens=n, **rule),
        "wrong": shaped_reward(False, n_tokens=n, **rule),
    }
    for n in (8_000, 16_384, 18_432, 20_480)
]
Table(pd.DataFrame(rows), "Reward after shaping.", formats={"tokens": ",.0f"})

# %% [markdown]
# **How to read this.** A right answer at the cap earns 0, about the mean of a half-right group: it
# is hardly pushed up any more. A group that is all wrong now has a spread, so a filter that looks
# at *shaped* rewards keeps it and trains length alone (notebook 06).
#
# ## 5. The paper and the run that it reports are not the same

# %%
found = differences(PAPER, RUN)
Table(
    pd.DataFrame([{"setting": s.name, "paper": s.a, "run": s.b} for s in found.settings]),
    "The same command for any two of the recipes: dapolab recipe paper dapo-32b-run",
)

# %% [markdown]
# ## Exercises
#
# 1. At which $k$ of 8 does dividing by the std change the advantage of a right answer most,
#    compared with `advantages(find("dr-grpo").objective.advantage, …)`?
# 2. Give the 1,000-token answer to the first prompt (`prompts = (0, 0, 0)`). Which recipe's shares
#    change, and why only these?
# 3. Compare your framework's version with the paper: `dapolab recipe` lists the names.
