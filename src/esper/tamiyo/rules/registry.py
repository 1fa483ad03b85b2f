"""The rule-based policies by name."""

from collections.abc import Callable, Mapping

from esper.tamiyo.rules.policy import RulePolicy
from esper.tamiyo.rules.probing import DetectThenProbePolicy, ProbeAndKeepPolicy
from esper.tamiyo.rules.schedule import SchedulePolicy
from esper.tamiyo.rules.simple import (
    FitRatioPolicy,
    PeriodicPolicy,
    PlateauPolicy,
    RandomLegalPolicy,
    WaitPolicy,
)

RULE_POLICIES: Mapping[str, Callable[..., RulePolicy]] = {
    "wait": WaitPolicy,
    "random": RandomLegalPolicy,
    "schedule": SchedulePolicy,
    "periodic": PeriodicPolicy,
    "plateau": PlateauPolicy,
    "fit_ratio": FitRatioPolicy,
    "probe_and_keep": ProbeAndKeepPolicy,
    "detect_then_probe": DetectThenProbePolicy,
}


def rule_policy(name: str, **options: object) -> RulePolicy:
    """A new policy of this name; the options are its class's.

    >>> rule_policy("random", rng=np.random.default_rng(0))
    >>> rule_policy("schedule", schedule="germinate mixer@1 t=0; advance 1 t=2")
    """
    if name not in RULE_POLICIES:
        raise ValueError(
            f"no rule-based policy is named {name!r}; expected one of {', '.join(RULE_POLICIES)}"
        )
    return RULE_POLICIES[name](**options)
