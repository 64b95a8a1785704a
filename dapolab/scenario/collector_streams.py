"""Tables of the policies without a barrier: groups are judged as they return."""

from typing import ClassVar, Literal

from pydantic import Field

from dapolab.scenario.about import NO_STALENESS, About
from dapolab.scenario.config import Config, Count
from dapolab.scenario.rollout import Budget

Leftovers = Literal["abort", "resume", "resume_with_kv"]
_SHORT_FIRST = (
    "Trains what returns first: groups in flight at the stop are the long ones, so trained answers "
    "are shorter than those of all mixed groups."
)


class Replenish(Config):
    """B groups in flight; each dropped group is replaced by one (OpenRLHF, ROLL)."""

    ABOUT: ClassVar[About] = About(
        who="OpenRLHF (samples_generator.py:140-197) and, with at least 16 groups in flight until "
        "the batch is full, ROLL generate_opt_level 1 (roll, roll_extra).",
        rule="Kept + in flight = B; a dropped group is replaced at once by one more. ROLL's "
        "additional prompts keep min_in_flight groups running to the end; the rest is aborted.",
        wins="Fewest candidates without a barrier; the step waits for the slowest slot while the "
        "others run dry, so it gains most where dropped groups return early.",
        bias="None without extra prompts (every group is waited for); with them, short-biased.",
        staleness=NO_STALENESS,
    )

    kind: Literal["replenish"] = "replenish"
    min_in_flight: int = Field(
        0, ge=0, description="extra prompts keep this many groups running (ROLL: 16)"
    )
    at_data_end: Literal["drop", "train"] = Field(
        "drop",
        description="no replacement left: lose all (OpenRLHF), or finish what runs (pull 1312)",
    )
    max_candidates: Count | None = Field(
        None, description="guard (OpenRLHF has no limit); absent: 1000·B"
    )
    budget: Budget = Budget()


class Streaming(Config):
    """``slots`` groups always in flight; stop at B kept, abort or keep the rest."""

    ABOUT: ClassVar[About] = About(
        who="AReaL in its synchronous limit (streaming); the verl recipe partial_rollout "
        "(verl_partial); open-instruct active_sampling (open_instruct).",
        rule="K groups always in flight, each return is answered by one more; at B kept the step "
        "ends. What still runs is aborted, or set aside and resumed first in the next step; groups "
        "beyond B are lost, or open the next batch.",
        wins="No slot waits. Aborting pays for unfinished work; resuming does not, and wins "
        "wall-clock wherever the tail is long, at the price of off-policy tokens.",
        bias=_SHORT_FIRST + " Resumed, the long ones are trained too, later.",
        staleness="None when aborted. Resumed: the answer's length over the tokens of a step, "
        "without a bound unless max_age is set.",
    )

    kind: Literal["streaming"] = "streaming"
    slots: Count | None = Field(None, description="K groups in flight; absent: slots_per_target·B")
    slots_per_target: Count = 2
    filter: bool = Field(True, description="only groups with spread are kept")
    leftovers: Leftovers = Field("abort", description="what becomes of the groups in flight")
    surplus: Literal["drop", "carry"] = Field("drop", description="kept groups beyond B")
    max_age: Count | None = Field(
        None, description="drop a group older than this many versions when it returns"
    )
    max_candidates: Count | None = Field(None, description="guard; absent: 1000·B")
    budget: Budget = Budget()


class Chunked(Config):
    """A chunk of O groups whenever fewer than B could still be accepted (slime)."""

    ABOUT: ClassVar[About] = About(
        who="slime (rollout/sglang_rollout.py:374-470), miles; with partial_rollout: APRIL "
        "(arXiv 2509.18521). Presets slime, slime_fallback, slime_partial.",
        rule="Whenever accepted + in flight < B, submit a whole chunk of over_sampling_batch_size "
        "groups (so one drop puts 2B − 1 in flight). Stop at B accepted: those beyond are lost, "
        "those in flight aborted, or with partial_rollout resumed first in the next step. The "
        "fallback filter keeps a reject that would start a new chunk.",
        wins="Big chunks hide the tail like streaming; a single reject can start a full chunk "
        "(slime pull 2217), which is paid for and mostly lost unless it is resumed.",
        bias=_SHORT_FIRST + " Resumed, the long ones are trained too, later.",
        staleness="None; with partial_rollout about 40 % of the tokens are one or more versions "
        "old (paper).",
    )

    kind: Literal["chunked"] = "chunked"
    over_sampling_batch_size: Count | None = Field(None, description="O ≥ B; absent: B")
    fallback: bool = Field(False, description="keep_when_insufficient: a reject is kept when short")
    leftovers: Leftovers = Field("abort", description="resume: partial_rollout, APRIL")
    max_candidates: Count | None = Field(
        None, description="guard (slime has no limit); absent: 1000·B"
    )
    budget: Budget = Budget()


class OverProvision(Config):
    """Launch η·B groups at once, the first B that pass win, abort the rest."""

    ABOUT: ClassVar[About] = About(
        who="The short rounds of RollPacker without its queue; redundancy of samples (DARTS).",
        rule="Launch eta·B prompts with response_eta·G responses each; a prompt is done with its "
        "first G responses (the others are cut), the first B prompts that pass win.",
        wins="Cuts the tail of one wave; worth it while the aborted work is smaller than the wait. "
        "There is no second wave: with a filter the batch may stay short.",
        bias=_SHORT_FIRST + " With response_eta > 1, also within each prompt.",
        staleness=NO_STALENESS,
    )

    kind: Literal["over_provision"] = "over_provision"
    eta: float = Field(1.5, ge=1, description="launched groups over wanted groups")
    response_eta: float = Field(1.0, ge=1, description="launched over wanted responses a prompt")
    filter: bool = Field(True, description="only groups with spread may win")
    budget: Budget = Budget()


class TailBatching(Config):
    """Short rounds cut the tail; the prompts cut fill a long round of their own (RollPacker)."""

    ABOUT: ClassVar[About] = About(
        who="RollPacker (NSDI'26, arXiv 2509.21009), built on ROLL.",
        rule="Short round: eta·B prompts × response_eta·G responses, the first G of a prompt and "
        "the first B prompts win, the other prompts go to a queue (their tokens are lost). When "
        "the queue holds B prompts the next step is a long round: those B prompts × G, nothing "
        "cut.",
        wins="Long prompts wait for each other instead of holding everyone up: the best of the "
        "synchronous on-policy policies under a heavy tail (Fig. 11).",
        bias="None over many steps by prompt (long ones get their own steps); with response_eta "
        "> 1, short answers within a prompt in short rounds.",
        staleness=NO_STALENESS,
    )

    kind: Literal["tail_batching"] = "tail_batching"
    eta: float = Field(1.25, ge=1, description="prompts launched over B in a short round")
    response_eta: float = Field(1.25, ge=1, description="responses launched over G, short round")
    filter: bool = Field(False, description="only groups with spread are trained")
    budget: Budget = Budget()


class VerlV1(Config):
    """Each evicted group buys two new ones, then all in flight are waited for (verl 0.9, V1)."""

    ABOUT: ClassVar[About] = About(
        who="The V1 trainer of verl 0.9 (trainer/ppo/v1/replay_buffer.py), synchronous.",
        rule="B prompts; an evicted group leaves two credits, credits become prompts while fewer "
        "than max_inflight_gen_batches·B are in flight; once B are good, nothing more is sent and "
        "all in flight are waited for. The first B in submission order are trained.",
        wins="No guess of q is needed; the drain makes the step wait for the slowest of the "
        "refills, and half of the refills are surplus.",
        bias="None by length: nothing is cut off.",
        staleness=NO_STALENESS,
    )

    kind: Literal["verl_v1"] = "verl_v1"
    max_inflight_gen_batches: Count = Field(1, description="at most this times B groups in flight")
    max_candidates: Count | None = Field(
        None, description="guard (verl V1 has no limit); absent: 1000·B"
    )
    budget: Budget = Budget()
