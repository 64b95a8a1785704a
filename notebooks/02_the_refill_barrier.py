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
# # The refill barrier
#
# Dynamic sampling trains only prompts whose answers are neither all right nor all wrong. When a
# group drops out, another prompt is sampled, and a synchronous trainer waits for it: one more
# *wave*, with one more longest answer. How many waves does a step need, and what do they cost?
#
# Everything below runs on a CPU core in seconds.

# %%
from pathlib import Path

import pandas as pd

from dapolab.compare import compare, select_collectors
from dapolab.report import FigureSpec
from dapolab.report.style import drawing, new_figure
from dapolab.scenario import load
from dapolab.theory.capped import capped_refill
from dapolab.theory.groups import p_mixed
from dapolab.theory.sampling import expected_waves

ROOT = Path("..") if Path("../sims").is_dir() else Path()

# %% [markdown]
# ## 1. Waves from a formula
#
# Let $q$ be the probability that a group is mixed. A step wants $B$ groups and may sample $M \cdot
# B$ (agentic-rl-lab 06-dapo: $B=4$, $M=2$). Each wave asks for exactly what is missing, so the
# chain of (missing, used) is small enough to solve exactly.

# %%
rows = []
for q in (0.2, 0.3, 0.5, 0.7, 0.9):
    law = capped_refill(q, n_groups=4, max_candidates=8)
    rows.append(
        {
            "q": q,
            "waves": law.expected_waves,
            f"P({law.max_waves} waves)": law.p_worst,
            "P(full batch)": law.p_full,
            "P(no update)": law.p_skip,
            "candidates/B": law.oversample,
            "waves, no cap": expected_waves(q, n_groups=4),
        }
    )
pd.DataFrame(rows).set_index("q").round(3)

# %% [markdown]
# **How to read this.** The worst case of $1+(M-1)B = 5$ waves is real and rare (at most 3.4 %).
# The common cost is the mean: between two and three barriers instead of one, from $q=.2$ to $.7$.
#
# ## 2. Where $q$ comes from
#
# $q = 1-p^G-(1-p)^G$ for a prompt with pass rate $p$. A better model raises $p$, and the waves
# come back: above 90 % right, most groups are all right.

# %%
pass_rates = [i / 100 for i in range(2, 99)]
with drawing():
    figure = new_figure(height_in=3.2)
    left, right = figure.subplots(1, 2)
    for size in (4, 8, 16):
        q = p_mixed(pass_rates, group_size=size)
        left.plot(pass_rates, q, label=f"G = {size}")
        right.plot(pass_rates, [expected_waves(float(x), n_groups=16) for x in q])
    left.set(xlabel="pass rate of the prompts", ylabel="share of mixed groups", ylim=(0, 1.02))
    right.set(xlabel="pass rate of the prompts", ylabel="waves of a step, B = 16", ylim=(0, 30))
    left.legend(frameon=False)
FigureSpec(
    name="waves",
    figure=figure,
    title="Share of mixed groups, and waves of a step, by pass rate",
    alt="Mixed groups are most at pass rate .5 and none at 0 and 1; waves the other way round.",
    how_to_read="Left: larger groups stay mixed longer. Right: the same curves as waves of a step "
    "of 16 groups refilled exactly. The valley is wide, its walls are steep.",
)

# %% [markdown]
# ## 3. The same prompts under seven policies
#
# A formula does not know that long prompts stay long, that answers get cut, or that a race favours
# the short. The simulator does: every policy below sees the same prompts, lengths and right
# answers.

# %%
KINDS = "exact_refill,filter_no_refill,rounds,replenish,chunked,streaming,over_provision"
scenario = load(ROOT / "sims/scenarios/small.toml", {"run.steps": 4, "run.replications": 6})
result = compare(scenario, select_collectors(scenario, KINDS), seed=0, n_jobs=1)
pd.DataFrame(
    {
        name: {
            "seconds per trained group": estimates["per_trained_group/seconds"].mean,
            "waves": estimates["rollout/waves"].mean if "rollout/waves" in estimates else None,
            "waiting for the longest": estimates["share/tail"].mean,
            "tokens trained": estimates["share/train_tokens"].mean,
            "trained / mixed length": estimates["bias/trained_length"].mean,
        }
        for name, estimates in result.estimates.items()
    }
).T.round(3)

# %%
print("may be the cheapest:", *result.best["per_trained_group/seconds"])

# %% [markdown]
# **How to read this.** Streaming never waits, so it is cheap, and it trains on short answers: the
# groups in flight when the batch is full are the long ones, and they are thrown away. A cheap
# policy whose last column is far from 1 changes what the model learns.
#
# ## Exercises
#
# 1. At which $q$ is the five-wave case most likely for $B=4$, $M=2$? (`law.p_worst`)
# 2. Raise `workload.mean_logit` to 2 in the scenario: which policy's cost grows fastest, and why?
# 3. Make every answer equally long (`workload.sigma` 0). Which policies become the same?
