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
# # Clip-higher and entropy
#
# DAPO raises the upper clip from 1.2 to 1.28 so that unlikely right tokens may grow, and reports
# that the entropy stops collapsing. Is that what an upper clip does? Two toy policies, many seeds
# each.

# %%
import pandas as pd
from IPython.display import display

from dapolab.bandit import curve_table, final_estimates, find_study, parse_mode, train
from dapolab.report import Table
from dapolab.report.bandit_report import bandit_document

CLIPS = ("clip.high=0.2", "clip.high=0.28", "clip.high=0.5")


# %%
def ask(name, *words, n_seeds=40, **settings):
    study = find_study(name)
    modes = [parse_mode(word, base=study.base) for word in words]
    bandit = study.bandit(**settings)
    return {mode.name: train(bandit, mode, seeds=range(n_seeds), seed=0) for mode in modes}


def page_of(runs):
    ends = {name: final_estimates(run) for name, run in runs.items()}
    curves = curve_table(list(runs.values()))
    return bandit_document(title="-", lead="-", curves=curves, estimates=ends, how_to_read=())


# %% [markdown]
# ## 1. A rare right token
#
# The paper's argument: a token of probability 0.01 may grow to 0.012 at most in one rollout, one
# of 0.9 to 1. Thirty-two updates on one rollout, a right answer of probability 0.01:

# %%
display(*page_of(ask("rare_token", *CLIPS, "no-clip")).figures()[:2])

# %% [markdown]
# **How to read this.** After one rollout the right answer is at five times 0.01, on average, under
# every clip. The clip stops *its own* gradient; the wrong answers, pushed down, go on lifting it
# until their lower clip is reached too. “At most 1.2 times” holds for the token's own gradient,
# not for its probability.
#
# ## 2. Entropy: it depends on what is likely and what is right
#
# One answer of thirty has most of the probability. Once it is right, once it is wrong, and once
# right and wrong are drawn by lot.

# %%
rows = []
for case in ("likely_right", "likely_wrong", "random"):
    runs = ask("many_arms", *CLIPS, case=case)
    start = float(runs[CLIPS[0]].values["entropy/answer"][0, 0])
    ends = {name: final_estimates(run)["entropy/answer"] for name, run in runs.items()}
    rows.append({"case": case.replace("_", " "), "start": start} | ends)
Table(pd.DataFrame(rows), "Entropy of the answer in nats, before and after three rollouts.")

# %%
likely_wrong = page_of(ask("many_arms", *CLIPS, case="likely_wrong")).figures()
display(*(figure for figure in likely_wrong if figure.name in ("policy", "clip")))

# %% [markdown]
# **How to read this.** Compare along a row. Where the likely answer is right, a larger upper clip
# lets it take over sooner: the entropy falls *further*. Where right answers are scattered, it
# rises. Where the likely answer is wrong, hardly anything changes in three rollouts. “Clip-higher
# raises the entropy” is a statement about what is likely and what is right, not about the clip
# alone.
#
# ## Exercises
#
# 1. Use one update a rollout (`+n_epochs=1`). Which column of the tables stops depending on the
#    clip, and why (notebook 01, part 3)?
# 2. Raise the lower clip (`clip.low=0.4`) in part 1. How far does the right answer get now?
# 3. Which is stronger in `random`: going from 0.2 to 0.28, or doubling `learning_rate`?
