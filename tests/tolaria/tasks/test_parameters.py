"""What a parameter may be, at each edge."""

import math

import pytest

from esper.tolaria.tasks.task import Parameter, ParameterError, ParameterSpec, complete

SIZE = ParameterSpec(kind="int", default=5, low=2, high=9, doc="a size")
SHARE = ParameterSpec(kind="float", default=0.5, low=0.0, high=1.0, doc="a share")
MODE = ParameterSpec(kind="str", default="fast", choices=("fast", "slow"), doc="a mode")
FILE = ParameterSpec(kind="str", is_path=True, doc="a file")
SEED = ParameterSpec(kind="int", default=0, low=0, doc="a seed")


@pytest.mark.parametrize(
    ("spec", "value", "result"),
    [
        (SIZE, 2, 2),
        (SIZE, 9, 9),
        (SHARE, 0, 0.0),
        (SHARE, 1, 1.0),
        (SHARE, 0.25, 0.25),
        (MODE, "slow", "slow"),
    ],
)
def test_edges_are_allowed_and_numbers_get_their_type(
    spec: ParameterSpec, value: Parameter, result: Parameter
) -> None:
    checked = spec.check("it", value)
    assert checked == result
    assert type(checked) is type(result)


@pytest.mark.parametrize(
    ("spec", "value", "allowed"),
    [
        (SIZE, 1, "a whole number from 2 to 9"),
        (SIZE, 10, "a whole number from 2 to 9"),
        (SIZE, 3.0, "a whole number"),
        (SIZE, True, "a whole number"),
        (SIZE, "3", "a whole number"),
        (SHARE, -0.001, "a number from 0 to 1"),
        (SHARE, 1.001, "a number from 0 to 1"),
        (SHARE, math.nan, "a number from 0 to 1"),
        (SHARE, True, "a number from 0 to 1"),
        (SEED, -1, "a whole number of at least 0"),
        (MODE, "medium", "one of fast, slow"),
        (MODE, 3, "one of fast, slow"),
        (FILE, "", "the path of a file"),
    ],
)
def test_an_error_names_the_field_the_value_and_what_is_allowed(
    spec: ParameterSpec, value: Parameter, allowed: str
) -> None:
    with pytest.raises(ParameterError, match=f"row.it must be {allowed}.*, not {value!r}"):
        spec.check("row.it", value)


def test_minus_zero_is_zero() -> None:
    assert math.copysign(1, float(SHARE.check("it", -0.0))) == 1


@pytest.mark.parametrize("text", ["three", "3.5", "", "1e3", "inf"])
def test_texts_that_are_no_number_are_refused(text: str) -> None:
    with pytest.raises(ParameterError, match=f"it must be a whole number from 2 to 9, not '{text}'"):
        SIZE.parse("it", text)


def test_completing_fills_defaults_and_refuses_unknown_and_missing() -> None:
    specs = {"size": SIZE, "file": FILE}
    assert complete("row", specs, {"file": "x"}) == {"size": 5, "file": "x"}
    with pytest.raises(ParameterError, match=r"task 'row' needs file \(a file\): write row:file="):
        complete("row", specs, {"size": 3})
    with pytest.raises(ParameterError, match="task 'row' has no parameter 'colour'; it has size, file"):
        complete("row", specs, {"file": "x", "colour": 1})
    with pytest.raises(ParameterError, match="it has none"):
        complete("row", {}, {"colour": 1})


def test_a_spec_checks_its_own_default() -> None:
    with pytest.raises(ParameterError, match="default must be a whole number from 2 to 9, not 1"):
        ParameterSpec(kind="int", default=1, low=2, high=9, doc="")
    with pytest.raises(ValueError, match="kind must be one of int, float, str, not 'bool'"):
        ParameterSpec(kind="bool", doc="")  # type: ignore[arg-type]
