"""Tables of the policies with a barrier: nothing is judged until a whole wave has returned."""

from typing import ClassVar, Literal

from pydantic import Field

from dapolab.scenario.about import NO_LENGTH_BIAS, NO_STALENESS, About
from dapolab.scenario.config import Config, Count, Positive, Share
from dapolab.scenario.rollout import Budget


class NoFilter(Config):
    """Train every group of one wave."""

    ABOUT: ClassVar[About] = About(
        who="GRPO as most trainers ship it: TRL 1.16, verl without filter_groups.",
        rule="One wave of B groups; all of them are trained, degenerate ones with advantage 0.",
        wins="When nearly every group is mixed, or when a smaller effective batch does not matter: "
        "it is the cheapest step, but part of it teaches nothing.",
        bias="None: candidates are what is trained.",
        staleness=NO_STALENESS,
    )

    kind: Literal["none"] = "none"
    budget: Budget = Budget()


class FilterNoRefill(Config):
    """One wave; degenerate groups leave, nothing replaces them."""

    ABOUT: ClassVar[About] = About(
        who="06-dapo's grpo preset, open-instruct without active_sampling, prime-rl by default, "
        "tinker-cookbook (tinker).",
        rule="One wave of B groups; those that do not spread leave, the batch shrinks, and where "
        "none is left the update is skipped (tinker keeps one group of them).",
        wins="Cheapest seconds for a trained mixed group where a batch that varies in size is "
        "acceptable; the noise of the gradient grows as the filter bites.",
        bias=NO_LENGTH_BIAS,
        staleness=NO_STALENESS,
    )

    kind: Literal["filter_no_refill"] = "filter_no_refill"
    keep_one: bool = Field(
        False, description="where all are degenerate, train the first (tinker) instead of skipping"
    )
    budget: Budget = Budget()


class ExactRefill(Config):
    """Waves of exactly the missing number of groups (agentic-rl-lab 06-dapo)."""

    ABOUT: ClassVar[About] = About(
        who="agentic-rl-lab 06-dapo (rollout.py:288-359).",
        rule="Waves of exactly the missing number of groups until B are kept or M·B candidates are "
        "used; at the cap the partial batch is trained (or the run dies, 6db470a).",
        wins="Fewest candidate tokens of all policies that fill the batch; each wave pays the "
        "longest answer again, so it loses wall-clock as the pass rate leaves the middle.",
        bias=NO_LENGTH_BIAS,
        staleness=NO_STALENESS,
    )

    kind: Literal["exact_refill"] = "exact_refill"
    max_candidate_multiplier: Count | None = Field(
        2, description="M: at most M·B candidates; absent: no cap"
    )
    at_cap: Literal["partial", "error"] = Field(
        "partial", description="train what was kept (4eb1b05), or end the run (6db470a)"
    )
    concurrent_groups: Count | None = Field(None, description="semaphore on groups (06-dapo: 16)")
    max_waves: Count = Field(10_000, description="guard where no cap is set")
    budget: Budget = Budget()


class Rounds(Config):
    """Whole generation batches until enough groups are kept (verl's DAPO recipe and kin)."""

    ABOUT: ClassVar[About] = About(
        who="verl's DAPO recipe (rounds), NeMo RL (nemo_rl), SkyRL filter (skyrl_filter), ms-swift "
        "(ms_swift, ms_swift_ray), OpenRLHF pull 968 (openrlhf_968).",
        rule="Generation batches of one size until B groups (NeMo RL: B·G samples) are kept; the "
        "first B in data order are trained, the surplus is lost (pull 968: kept for the next "
        "step). They differ in the size of a batch, in how many are allowed and in what follows.",
        wins="One big round wins wall-clock while q times its size reaches B nearly always; it "
        "throws the rest away, so it loses tokens as q rises.",
        bias=NO_LENGTH_BIAS,
        staleness="None; with surplus = carry, groups of the round before by one or more versions.",
    )

    kind: Literal["rounds"] = "rounds"
    gen_groups: Count | None = Field(
        None, description="gen_batch_size; absent: gen_multiplier times B"
    )
    gen_multiplier: Positive = Field(3.0, description="NeMo RL: batch_multiplier")
    max_num_gen_batches: int = Field(10, description="≤ 0: no limit (verl, SkyRL)")
    rounds_past_max: int = Field(
        0, ge=0, description="rounds generated beyond the limit (NeMo RL and ms-swift: 1)"
    )
    examine_last: bool = Field(
        True, description="false: the last allowed round is generated and never looked at"
    )
    at_max: Literal["error", "stop", "original"] = Field(
        "error", description="end the run, train what was kept, or train the first B groups as is"
    )
    judge: Literal["group", "sample"] = Field(
        "group", description="sample: leave-one-out, a response whose peers agree is dropped (NeMo)"
    )
    surplus: Literal["drop", "carry"] = Field(
        "drop", description="carry: groups beyond B open the next step's batch"
    )
    max_waves: Count = Field(1_000, description="guard where no limit is set")
    budget: Budget = Budget()


class Replace(Config):
    """Degenerate groups are overwritten by copies of good ones (SkyRL replace, POLARIS)."""

    ABOUT: ClassVar[About] = About(
        who="SkyRL dynamic_sampling.type = replace (trainer_utils.py:392-620), after POLARIS and "
        "WebSailor.",
        rule="Generate B groups; where more than 30 % are good, random good ones are copied over "
        "the bad and the step is full; else the whole batch is thrown away and drawn again, at "
        "most 30 times.",
        wins="Always one wave while over 30 % of the groups are mixed: the wall-clock of no refill "
        "with a full batch; the copies add no new information.",
        bias="None by length; the copied groups weigh twice or more.",
        staleness=NO_STALENESS,
    )

    kind: Literal["replace"] = "replace"
    min_replace_ratio: Share = Field(0.3, description="good share above which copies fill up")
    max_sample_batches: int = Field(30, description="≤ 0: no limit")
    max_waves: Count = Field(1_000, description="guard where no limit is set")
    budget: Budget = Budget()


class AdaptiveWave(Config):
    """Waves sized by the share of degenerate groups seen so far (GRESO)."""

    ABOUT: ClassVar[About] = About(
        who="GRESO (arXiv 2506.02177 and its code).",
        rule="The first wave has the default size; each next one is missing ÷ (1 − z) · 1.25 "
        "groups, z being the degenerate share of the step so far, within [64, default]. The first "
        "B in data order are trained, the surplus is lost.",
        wins="Between whole rounds and exact refill: few second waves, small surplus. Its floor of "
        "64 groups makes it whole rounds where B is small.",
        bias=NO_LENGTH_BIAS,
        staleness=NO_STALENESS,
    )

    kind: Literal["adaptive_wave"] = "adaptive_wave"
    gen_groups: Count | None = Field(None, description="default and largest wave; absent: 3·B")
    min_groups: Count = Field(64, description="smallest wave (the default wave where that is less)")
    safety: Positive = Field(1.25, description="factor on the expected need")
    max_num_gen_batches: int = Field(10, description="≤ 0: no limit")
    max_waves: Count = Field(1_000, description="guard where no limit is set")
    budget: Budget = Budget()


class Screening(Config):
    """A few samples first, the rest only where they disagree (SPEED)."""

    ABOUT: ClassVar[About] = About(
        who="SPEED-RL (arXiv 2506.09016); online difficulty filtering in general.",
        rule="Waves: screen_groups prompts get screen_samples responses; a prompt whose answers "
        "disagree gets the other G − screen_samples in the next wave, together with the next "
        "screening while B have not qualified. The first B that qualify are trained.",
        wins="Saves most of the tokens of degenerate prompts when these are many; pays a second "
        "wave always, and misses prompts with rare rights or wrongs.",
        bias="None by length; prompts near 50 % pass the screening more often than their mixed "
        "groups would: difficulty is narrowed to the middle.",
        staleness=NO_STALENESS,
    )

    kind: Literal["screening"] = "screening"
    screen_samples: int = Field(4, ge=2, description="responses before the decision; less than G")
    screen_groups: Count | None = Field(None, description="prompts screened a wave; absent: 2·B")
    max_waves: Count = Field(100, description="guard (SPEED has no limit)")
    budget: Budget = Budget()


class Segments(Config):
    """At most so many tokens a response and step; what is unfinished goes on next step (Kimi)."""

    ABOUT: ClassVar[About] = About(
        who="Kimi k1.5 partial rollouts (arXiv 2501.12599).",
        rule="Every step brings the groups in play to eta·B, unfinished ones first; a response "
        "stops after segment_tokens tokens of this step and goes on in the next. Groups whose "
        "responses have all ended are judged; the first B that pass are trained.",
        wins="Bounds a step's seconds whatever the longest answer; pays prefills of what was "
        "generated, and off-policy tokens.",
        bias="Long groups are trained later, not less often.",
        staleness="Up to cap ÷ segment_tokens versions for the first tokens of the longest.",
    )

    kind: Literal["segments"] = "segments"
    segment_tokens: Count | None = Field(
        None, description="most tokens a response gains in one step; absent: half the cap"
    )
    eta: float = Field(1.5, ge=1, description="groups in play over wanted groups")
    filter: bool = Field(True, description="only groups with spread are trained")
    keep_kv: bool = Field(False, description="resume from kept KV; false: prefill again")
    budget: Budget = Budget()
