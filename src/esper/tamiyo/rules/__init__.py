"""Rules: policies without learning (baselines, heuristics, open-loop schedules), and how to make one by its name."""

import inspect
from collections.abc import Callable, Mapping

import numpy as np

from esper.leyline.errors import nearest
from esper.tamiyo.rules.by_layout import ByLayoutPolicy, FrozenSpreadPolicy, LiveOnPolicy
from esper.tamiyo.rules.heuristics import (
    DetectThenProbePolicy,
    FitRatioPolicy,
    PeriodicPolicy,
    PlateauPolicy,
    ProbeAndKeepPolicy,
    RandomLegalPolicy,
    WaitPolicy,
)
from esper.tamiyo.rules.policy import RulePolicy as RulePolicy
from esper.tamiyo.rules.policy import SavableRule as SavableRule
from esper.tamiyo.rules.schedule import Clause as Clause
from esper.tamiyo.rules.schedule import Schedule as Schedule
from esper.tamiyo.rules.schedule import SchedulePolicy as SchedulePolicy

RULE_POLICIES: Mapping[str, Callable[..., SavableRule]] = {
    "wait": WaitPolicy,
    "random": RandomLegalPolicy,
    "schedule": SchedulePolicy,
    "periodic": PeriodicPolicy,
    "plateau": PlateauPolicy,
    "fit_ratio": FitRatioPolicy,
    "probe_and_keep": ProbeAndKeepPolicy,
    "detect_then_probe": DetectThenProbePolicy,
    "by_layout": ByLayoutPolicy,
    "frozen_spread": FrozenSpreadPolicy,
    "live_on": LiveOnPolicy,
}


def rule_name(rule: RulePolicy) -> str:
    """The name by which a rule is made; of a class of a user's own, the class's."""
    return next((name for name, kind in RULE_POLICIES.items() if type(rule) is kind), type(rule).__name__)


RULE_NAMES = tuple(name for name in RULE_POLICIES if name != "schedule")
"""Rules that need no options, so that a name says everything."""


def rule_policy(name: str, *, rng: np.random.Generator | None = None, **options: object) -> SavableRule:
    """Return a new rule of this name; `options` are those of its class. `rng` is used by `random` alone.

    >>> rule_policy("random", rng=np.random.default_rng(0))
    >>> rule_policy("schedule", schedule="germinate mixer@1 t=0; advance 1 t=2")
    """
    if name not in RULE_POLICIES:
        raise ValueError(
            f"no rule is named {name!r}; expected one of {', '.join(RULE_POLICIES)}{nearest(name, RULE_POLICIES)}"
        )
    if name == "random":
        if rng is None:
            raise ValueError("the rule random needs rng, such as np.random.default_rng(0)")
        options["rng"] = rng
    if name == "schedule" and "schedule" not in options:
        raise ValueError(
            "the rule schedule needs its text: rule_policy('schedule', schedule='germinate mixer@1 t=0; ...')"
        )
    known = inspect.signature(RULE_POLICIES[name]).parameters
    for option in options:
        if option not in known:
            listed = ", ".join(known) or "none"
            raise ValueError(
                f"the rule {name} has no option {option!r}; there are {listed}{nearest(option, known)}"
            )
    return RULE_POLICIES[name](**options)
