"""What groups came to: right, wrong, mixed; and what that says about how the file was selected."""

import pandas as pd

from dapolab.records.options import Selection

FILTERED_BELOW_SHARE = 0.01
MIN_GROUPS_TO_DOUBT = 20


def group_outcomes(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row a group: ``n`` responses, ``n_judged`` with known correctness, ``n_right``."""
    correct = table["correct"]
    groups = table["group_id"]
    frame = pd.DataFrame(
        {
            "group_id": groups,
            "n": 1,
            "n_judged": correct.notna().to_numpy(dtype="int64"),
            "n_right": correct.fillna(False).to_numpy(dtype="int64"),
        }
    )
    return frame.groupby("group_id", sort=False).sum()


def conclude_selection(
    table: pd.DataFrame, *, declared: Selection | None, asked: str | None, why: str = ""
) -> tuple[str, str]:
    """Say which candidates a file holds, and why, in one line.

    The user's word comes first, then what the format declares, then the groups themselves: a file
    from which constant groups were filtered has none, so groups that are all right or all wrong
    prove that it was not filtered on correctness. Their absence proves nothing.
    """
    if asked is not None:
        return asked, f"selection = {asked}, as given"
    constant, total = _constant_groups(table)
    if declared is not None and declared != "unknown":
        if declared == "all" and total >= MIN_GROUPS_TO_DOUBT and constant == 0:
            return declared, (
                f"selection = all ({why}), yet all {total} groups are mixed: if constant groups "
                "were filtered, say --selection kept_mixed"
            )
        return declared, f"selection = {declared}: {why}"
    kept = table["kept"]
    if bool((kept == False).any()):  # noqa: E712  a nullable column: `not` has no meaning
        return "all", "selection = all: rows that were not kept are in the file"
    if total == 0:
        sizes = table.groupby("group_id", sort=False).size()
        if int(sizes.max()) == 1:
            return "all", "selection = all: groups of one response cannot be filtered as mixed"
        return "unknown", (
            "selection = unknown: no correctness or reward to tell whether groups were filtered; "
            "say --selection"
        )
    if constant > 0 and constant >= FILTERED_BELOW_SHARE * total:
        return "all", (
            f"selection = all: {constant} of {total} groups are all right or all wrong, so mixed "
            "groups were not picked (if only first-finished responses were kept, say so)"
        )
    return "unknown", (
        f"selection = unknown: {total - constant} of {total} groups are mixed, as after dynamic "
        "sampling; say --selection kept_mixed or --selection all"
    )


def _constant_groups(table: pd.DataFrame) -> tuple[int, int]:
    """Count groups without spread, and all groups of two or more that can be judged."""
    outcomes = group_outcomes(table)
    judged = outcomes[(outcomes["n"] > 1) & (outcomes["n_judged"] == outcomes["n"])]
    if len(judged):
        constant = (judged["n_right"] == 0) | (judged["n_right"] == judged["n"])
        return int(constant.sum()), len(judged)
    reward = table["reward"].groupby(table["group_id"], sort=False)
    spread = (reward.max() - reward.min())[(reward.count() == reward.size()) & (reward.size() > 1)]
    return int((spread == 0).sum()), len(spread)
