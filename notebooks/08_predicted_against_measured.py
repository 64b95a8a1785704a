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
# # Predicted against measured
#
# A simulator that is not held against reality is an opinion. This notebook computes nothing: it
# reads the stored tables of the lab, real systems first, sentences next, real small-model training
# last.

# %%
import json
from pathlib import Path

import pandas as pd
from IPython.display import display

from dapolab.report import Table
from dapolab.report.fidelity_figures import backtest_figure, published_figure
from dapolab.stats import Estimate

ROOT = Path("..") if Path("../reports").is_dir() else Path()
REPORTS = ROOT / "reports"


# %%
def stored(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def verdicts(claims):
    return pd.Series([claim["verdict"] for claim in claims]).value_counts().rename("claims")


def numbers(claims):
    columns = ("id", "verdict", "statement", "predicted")
    rows = [
        {name: claim[name] for name in columns}
        | {
            "measured": claim["measured"]
            if claim["low"] is None
            else Estimate(claim["measured"], claim["low"], claim["high"], claim["n"], "")
        }
        for claim in claims
        if claim["measured"] is not None
    ]
    return Table(pd.DataFrame(rows, columns=[*columns, "measured"]), "Of the row that decides.")


# %% [markdown]
# ## 1. Real systems
#
# One run calibrates, another is predicted: a GRPO log without a filter says what switching dynamic
# sampling on will cost, and then the DAPO run's own log is opened.

# %%
fidelity = stored(REPORTS / "fidelity.json")
tables = {name: pd.DataFrame(rows) for name, rows in (fidelity or {"tables": {}})["tables"].items()}
if fidelity is None:
    print("not measured here: dapolab fidelity --data ../shared/data -o reports")
else:
    display(backtest_figure(tables["backtests"]))

# %%
if "published" in tables:
    for system in tables["published"]["system"].unique()[:2]:
        display(published_figure(tables["published"], system))

# %% [markdown]
# **How to read this.** In the first figure nothing was tuned on the predicted run: a bar across
# the line is evidence. In the others the publication leaves inputs open; the grey baselines were
# fitted and are no evidence, the other rows are, and a wide bar says only that the row is not
# determined.
#
# ## 2. Sentences
#
# Every statement in circulation has a file with its number, its rival and its tolerance, written
# before the run. What fails is the more interesting half.

# %%
claims = stored(REPORTS / "claims.json")["claims"]
display(verdicts(claims).to_frame())
numbers([claim for claim in claims if claim["verdict"] == "fails"])

# %% [markdown]
# **How to read this.** *Predicted* is theory's number, *measured* the instrument's with its 99 %
# interval. A claim fails where the measured number lies beyond the tolerance around what the
# sentence says; theory and instrument may well agree with each other against the sentence.
#
# ## 3. Real training
#
# A small transformer, trained for real; its predictions lay on disk before the first step.

# %%
studies = sorted((REPORTS / "tables/predicted_vs_measured").glob("*/claims.json"))
found = [claim for path in studies for claim in stored(path)]
if found:
    display(verdicts(found).to_frame(), numbers(found))
else:
    print("not measured here: python -m gpu_runs validate toy_cpu -o reports")

# %% [markdown]
# **How to read this.** Directions, identities and the arithmetic of sampling carry over from a toy
# to a large model; seconds and effect sizes do not. *Undecided* is an answer, too: the interval
# was not narrow enough to say.
#
# ## Exercises
#
# 1. Which row of the backtests has the largest error, and is the measured value inside its
#    interval?
# 2. Take one failed claim and read its `correction`. Do you know a text that repeats the sentence?
# 3. Backtest your own pair of runs:
#
#        dapolab backtest --calibrate A.log --predict B.toml --against B.log
