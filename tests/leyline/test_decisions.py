"""`DecisionSettings`: what a decider may do, checked when it is made."""

import pytest

from esper.leyline import CHOICES, HEAD_NAMES, DecisionSettings, LifecycleOp, Style


def test_defaults_forbid_nothing() -> None:
    settings = DecisionSettings()
    assert (settings.frozen_heads, settings.first_growth, settings.menu) == ({}, 0, None)
    assert settings.frozen_choices == {}


def test_choices_are_counted_as_masks_count_them() -> None:
    settings = DecisionSettings(
        {"style": Style.GATE, "tempo": 8, "alpha_target": 0.5, "alpha_curve": "cosine"}
    )
    assert settings.frozen_choices == {"style": 3, "tempo": 2, "alpha_target": 0, "alpha_curve": 1}
    assert DecisionSettings({"style": "gate"}) == DecisionSettings({"style": Style.GATE})
    assert DecisionSettings({"op": LifecycleOp.WAIT}).frozen_choices == {"op": 0}
    assert [head for head in HEAD_NAMES if head not in CHOICES] == ["slot", "blueprint"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"frozen_heads": {"temp": 3}}, "frozen_heads has temp=3; expected heads among op, style, tempo"),
        ({"frozen_heads": {"slot": 0}}, "frozen_heads has slot=0; expected heads among op, style, tempo"),
        ({"frozen_heads": {"tempo": 4}}, "frozen_heads has tempo=4; expected one of 3, 5, 8"),
        ({"first_growth": -1}, "first_growth is -1; expected a whole number >= 0"),
        ({"first_growth": "4"}, "first_growth is '4'; expected a whole number"),
        ({"frozen_heads": [3]}, r"frozen_heads is \[3\]; expected head -> its only choice"),
        ({"menu": (3,)}, r"menu is \(3,\); expected names"),
        ({"plateau_threshold": "a"}, "plateau_threshold is 'a'; expected a number"),
        ({"menu": "mixer"}, r"menu is 'mixer'; expected names, such as \('mixer',\)"),
        ({"menu": ()}, r"menu is \(\); expected names, such as \('mixer',\), or None"),
        ({"plateau_threshold": -0.1}, "plateau_threshold is -0.1; expected a number >= 0"),
        ({"plateau_threshold": float("nan")}, "plateau_threshold is nan; expected a number >= 0"),
        ({"plateau_threshold": float("inf")}, "plateau_threshold is inf; expected a number >= 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecisionSettings(**wrong)  # type: ignore[arg-type]
