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
# # Length bias
#
# “GRPO makes wrong answers longer.” Does it, by how much, and which of the proposed repairs works?
# Here are the smallest policies in which the question has an answer, trained over many seeds with
# the same loss code that the recipes are judged by.

# %%
import pandas as pd
from IPython.display import display

from dapolab.bandit import curve_table, final_estimates, find_study, first_drift, parse_mode, train
from dapolab.report import Table
from dapolab.report.bandit_report import bandit_document


# %%
def ask(name, *words, n_steps=100, n_seeds=40):
    study, found = find_study(name), []
    training = study.base.training.model_copy(update={"n_steps": n_steps})
    for word in words:
        mode = parse_mode(word, base=study.base.model_copy(update={"training": training}))
        found.append(train(study.bandit(), mode, seeds=range(n_seeds), seed=0))
    ends = {run.mode: final_estimates(run) for run in found}
    page = bandit_document(
        title="-", lead="-", curves=curve_table(found), estimates=ends, how_to_read=()
    )
    return [figure for figure in page.figures() if figure.name in ("lengths", "policy")]


MEAN = "seq-mean-token-mean"
TOKEN = "token-mean"
SUM = "seq-mean-token-sum-norm+aggregation.constant=55"

# %% [markdown]
# ## 1. Length and correctness as separate choices
#
# Four answers: {right, wrong} × {10, 100} tokens. Averaging each answer over its own length gives
# a token of a short answer ten times the weight of one of a long answer. A wrong answer is pushed
# down: the short ones harder.

# %%
display(*ask("length_classes", MEAN, TOKEN, SUM))

# %% [markdown]
# **How to read this.** Left, right answers get shorter under the sample mean; middle, wrong ones
# get longer. Sums over a constant do neither. The token mean keeps a part, because one group of
# eight is all that it averages over. The mean of *all* lengths (right) moves even without any
# bias: it follows which answers become likely.
#
# ## 2. The first update, exactly
#
# No seeds are needed for the first step: the expected gradient is a sum over all batches.

# %%
study = find_study("length_classes")
rows = []
for word in (MEAN, TOKEN, TOKEN + "+n_groups=8", SUM):
    drift = first_drift(study.bandit(), parse_mode(word, base=study.base))
    right, wrong = (drift[f"first/length/{which}"] for which in ("right", "wrong"))
    rows.append({"aggregation": word, "right": right, "wrong": wrong})
Table(pd.DataFrame(rows), "Tokens per unit of learning rate; no interval means exact.")

# %% [markdown]
# **How to read this.** A minus under “right” and a plus under “wrong” is the bias that Dr. GRPO
# names. With one group of eight answers the token mean keeps about a seventeenth of it, and the
# more groups share the denominator, the less: “token-level loss removes length bias” is right in
# the limit of large batches and not exactly right for one group. (The row with eight groups is
# sampled.)
#
# ## 3. A policy that cannot tell
#
# In the third environment one parameter stops right and wrong answers alike.

# %%
display(*ask("shared_length", MEAN, TOKEN, MEAN + "+grpo"))

# %% [markdown]
# **How to read this.** All intervals hold the start. A length bias needs a policy that knows,
# while it writes, whether it is right; the sentence “GRPO makes answers longer” has no object
# here.
#
# ## Exercises
#
# 1. Ask `eos_hazard`, where every token may be the last, with the same three modes. Do the signs
#    agree with part 1?
# 2. Add `+grpo` (division by the std) to the modes of part 1. Does it change the direction or only
#    the size of the push?
# 3. At which `+n_groups=N` does the token mean's first update fall below a hundredth of the sample
#    mean's? Does N double if the long answers have 200 tokens (`study.bandit(long_tokens=200)`)?
