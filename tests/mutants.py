"""Wrong objectives that must be noticed: each turns a claim (test_claims.py) and a test red.

    python -m tests.mutants [NAME ...]

runs the tests of the objective and of the bandit once for each mutant and prints the first test
that fails; it ends with 1 where a mutant survives. As a plugin (``-p tests.mutants --mutant NAME``)
it runs pytest under one mutant.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from dapolab.bandit import gradients
from dapolab.objective import clipping, length, loss
from dapolab.objective.estimators import Members
from dapolab.objective.groups import Groups
from dapolab.objective.masking import keep_valid
from dapolab.scenario import CispoClip, SeqMeanTokenMean, TokenMean, TokenMeanMicro

JUDGES = (
    "tests/test_objective_aggregation.py",
    "tests/test_objective_clipping.py",
    "tests/test_objective_terms.py",
    "tests/test_objective_advantages.py",
    "tests/test_objective_cells.py",
    "tests/test_recipes.py",
    "tests/test_bandit_policies.py",
    "tests/test_bandit_run.py",
    "tests/validation/test_bandit_theory.py",
)
"""In which a mutant is looked for, the nearest first."""


@dataclass(frozen=True)
class Mutant:
    """``owner.attribute`` replaced; ``claim``: the (start of the) id of the claim that turns."""

    owner: object
    attribute: str
    replacement: Callable[..., object]
    claim: str


SCALES, BOUNDS, PENALTY = loss.row_scales, clipping.ratio_bounds, length.overlong_penalty
STD, BY_ID, KEPT = Members.std, Groups.by_id, gradients._kept
WEIGHT = clipping.weight_without_gradient


def swapped_means(mask, config, **rest):
    other = {"token-mean": SeqMeanTokenMean(), "seq-mean-token-mean": TokenMean()}
    return SCALES(mask, other.get(config.kind, config), **rest)


def local_denominators(mask, config, **rest):
    return SCALES(mask, TokenMeanMicro() if config.kind == "token-mean" else config, **rest)


def masked_in_denominator(mask, config, **rest):
    if config.kind == "token-mean":
        config = config.model_copy(update={"filtered_tokens": "in"})
    return SCALES(mask, config, **rest)


def other_ddof(members, ddof):
    return STD(members, 1 - ddof)


def swapped_epsilons(clip, advantages):
    return BOUNDS(clip.model_copy(update={"low": clip.high, "high": clip.low}), advantages)


def flipped_side(clip, advantages):
    return BOUNDS(clip, -advantages)


def dual_clip_for_all(clip, advantages):
    lower, upper = BOUNDS(clip, advantages)
    dual_c = getattr(clip, "dual_c", None)
    return lower, upper if dual_c is None else upper.clamp(max=dual_c)


def summed_log_ratio(tokens, clip):
    return keep_valid(tokens.ratio_of(clip), mask=tokens.mask).sum(dim=-1, keepdim=True)


def attached_weight(tokens, clip):
    if not isinstance(clip, CispoClip):
        return WEIGHT(tokens, clip)
    return tokens.ratio_of(clip).exp().clamp(max=1.0 + clip.high)


def off_by_one(lengths, config):
    return PENALTY(lengths + 1, config)


def unclamped(lengths, config):
    return PENALTY(lengths, config.model_copy(update={"beyond": "unclamped"}))


def always_shaped(bandit, mode, theta, answers):
    training = mode.training.model_copy(update={"filter": "shaped"})
    return KEPT(bandit, mode.model_copy(update={"training": training}), theta, answers)


def one_group(cls, ids):
    return BY_ID(torch.zeros_like(ids))


MUTANTS = {
    "token-mean and seq-mean swapped": Mutant(
        loss, "row_scales", swapped_means, "seed-long-answers"
    ),
    "local denominators": Mutant(loss, "row_scales", local_denominators, "p8"),
    "masked tokens in the denominator": Mutant(
        loss, "row_scales", masked_in_denominator, "overlong-filtering"
    ),
    "the other ddof": Mutant(Members, "std", other_ddof, "dr-grpo-difficulty-bias"),
    "epsilons swapped": Mutant(clipping, "ratio_bounds", swapped_epsilons, "clip-log-symmetric"),
    "clip side flipped": Mutant(clipping, "ratio_bounds", flipped_side, "clip-gates"),
    "dual clip for A > 0": Mutant(clipping, "ratio_bounds", dual_clip_for_all, "clip-gates"),
    "CISPO weight attached": Mutant(
        clipping, "weight_without_gradient", attached_weight, "clip-gates"
    ),
    "overlong unclamped": Mutant(length, "overlong_penalty", unclamped, "overlong-form"),
    "threshold off by one": Mutant(length, "overlong_penalty", off_by_one, "overlong-form"),
    "GSPO without 1/L": Mutant(clipping, "sequence_log_ratio", summed_log_ratio, "c13"),
    "filter on shaped": Mutant(gradients, "_kept", always_shaped, "p11"),
    "batch baseline": Mutant(Groups, "by_id", classmethod(one_group), "dr-grpo-difficulty-bias"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutant", choices=MUTANTS, help="run under this wrong objective")


def pytest_configure(config: pytest.Config) -> None:
    if (name := config.getoption("--mutant", None)) is None:
        return
    mutant = MUTANTS[name]
    original = vars(mutant.owner)[mutant.attribute]
    setattr(mutant.owner, mutant.attribute, mutant.replacement)
    for module in [m for key, m in sys.modules.items() if key.startswith("dapolab")]:
        for attribute, value in list(vars(module).items()):
            if value is original:  # a name that a package re-exports
                setattr(module, attribute, mutant.replacement)


def first_failure(name: str | None) -> str | None:
    """Return the first test that is red under a mutant, or None."""
    words = [sys.executable, "-m", "pytest", "-p", "tests.mutants", "-x", "-q", "-p", "no:xdist"]
    words += ["--no-header", *JUDGES] + (["--mutant", name] if name else [])
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # no verdict of tests
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    found = re.search(r"^FAILED (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return found.group(1) if found else None


def main(names: list[str]) -> int:
    if red := first_failure(None):
        print(f"without a mutant {red} fails already")
        return 1
    survived = 0
    for name in names or list(MUTANTS):
        red = first_failure(name)
        survived += red is None
        print(f"{name}: {red or 'SURVIVES'}", flush=True)
    print(f"{survived} of {len(names or MUTANTS)} mutants survive")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
