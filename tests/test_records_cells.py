"""Cells as real dumps write them."""

import pytest

from dapolab.records import cells
from dapolab.records.cells import CellError


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        (1, 1.0),
        (0.5, 0.5),
        ("0.5", 0.5),
        (" -8.1e-06 ", -8.1e-06),
        (True, 1.0),
        ("tensor(-1.)", -1.0),
        ("tensor(0.2500, device='cuda:0')", 0.25),
        ("tensor([3.])", 3.0),
        ("np.float64(0.75)", 0.75),
        (None, None),
        ("", None),
        ("NaN", None),
        (float("nan"), None),
        ("null", None),
        ("N/A", None),
    ],
)
def test_number(cell: object, value: float | None) -> None:
    assert cells.number(cell) == value


@pytest.mark.parametrize(
    "cell",
    ["abc", [1], {"a": 1}, float("inf"), "-inf", "1,5", "1_000", "tensor(x)", "__import__('os')"],
)
def test_what_is_no_number(cell: object) -> None:
    with pytest.raises(CellError):
        cells.number(cell)


@pytest.mark.parametrize(
    ("cell", "value"), [(14, 14), (14.0, 14), ("14", 14), ("14.0", 14), ("", None)]
)
def test_whole(cell: object, value: int | None) -> None:
    assert cells.whole(cell) == value


@pytest.mark.parametrize("cell", [14.5, -1, "-1", "x", 2**63])
def test_what_is_no_count(cell: object) -> None:
    with pytest.raises(CellError):
        cells.whole(cell)


@pytest.mark.parametrize(
    ("cell", "value"),
    [(1, True), (0.0, False), ("True", True), ("no", False), ("1.0", True), (None, None)],
)
def test_boolean(cell: object, value: bool | None) -> None:
    assert cells.boolean(cell) is value


@pytest.mark.parametrize("cell", [0.5, 2, "maybe", []])
def test_what_is_no_boolean(cell: object) -> None:
    with pytest.raises(CellError):
        cells.boolean(cell)


@pytest.mark.parametrize(
    ("cell", "value"), [(3, "3"), (3.0, "3"), ("007", "007"), (None, None), ("nan", None)]
)
def test_ids_are_text(cell: object, value: str | None) -> None:
    assert cells.text_id(cell) == value


def test_an_extra_looks_the_same_whatever_the_file_format() -> None:
    assert cells.scalar_text(1) == cells.scalar_text(1.0) == cells.scalar_text("1.0") == "1"
    assert cells.scalar_text(True) == cells.scalar_text("True") == "true"
    assert cells.scalar_text("007") == "007"
    long_text = "ä" * 500
    short = cells.scalar_text(long_text)
    assert short is not None
    assert len(short) < 50
    assert short.endswith(":500")


def test_stop_reasons() -> None:
    assert cells.cut_by_limit("length") is True
    assert cells.cut_by_limit("stop") is False
    assert cells.cut_by_limit(None) is None
