"""Every rule-based policy leads hosts of every layout to the horizon and never asks for what is illegal."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from esper.kasmina import GrowthRules
from esper.tamiyo.rules import RULE_POLICIES, RulePolicy, rule_policy
from watched import KINDS, ModelHost, live, small_model

OPTIONS: dict[str, dict[str, Any]] = {
    "random": {"rng": np.random.default_rng(0)},
    "schedule": {"schedule": "germinate norm@1 t=0; advance 1 t=1; fossilize 1 t=2; prune 0 t=3"},
}


def make(name: str) -> RulePolicy:
    return rule_policy(name, **OPTIONS.get(name, {}))


def table(_epoch: int, slot: str, _blueprint: str) -> float:
    """What grows at the last slot helps, elsewhere it harms."""
    return 0.3 if slot == "blocks.2" else -0.1


def dropping(epoch: int) -> float:
    return 0.8 if epoch < 7 else 0.4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RULE_POLICIES)
def test_whole_lives(name: str, kind: str) -> None:
    policy = make(name)
    host = ModelHost(small_model(kind), measure=table, accuracy=dropping)
    did = Counter(what.split()[0] for _, what in live(policy, host, horizon=40))
    assert bool(did) == (name != "wait")
    if name in ("periodic", "plateau", "fit_ratio", "probe_and_keep", "detect_then_probe"):
        assert did["germinate"] >= 2
        assert did["fossilize"] >= 1
        assert did["prune"] >= 1
    if did:  # another episode begins from scratch, on a host of another layout
        other = ModelHost(small_model(KINDS[KINDS.index(kind) - 1]), measure=table, accuracy=dropping)
        assert live(policy, other, horizon=40)


@pytest.mark.parametrize("name", RULE_POLICIES)
@pytest.mark.parametrize(
    "rules",
    [
        GrowthRules(max_live_seeds=1, min_prune_age=9, embargo_epochs=5),
        GrowthRules(min_training_epochs=0, min_holding_epochs=4, min_prune_age=0, embargo_epochs=0),
    ],
)
def test_other_rules_of_growth(name: str, rules: GrowthRules) -> None:
    live(make(name), ModelHost(small_model("series", rules), measure=table, accuracy=dropping), horizon=40)


def test_random_tries_everything() -> None:
    policy = make("random")
    done = [what for _, what in live(policy, ModelHost(small_model("image")), horizon=300)]
    assert {what.split()[0] for what in done} == {
        "germinate",
        "advance",
        "set_alpha_target",
        "prune",
        "fossilize",
    }
    assert len({what for what in done if what.startswith("germinate")}) > 5


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"no rule is named 'plato'; expected one of wait, random, .*mean 'plateau'"
    ):
        rule_policy("plato")
    with pytest.raises(
        ValueError, match=r"no option 'patients'; there are margin, .* did you mean 'patience'"
    ):
        rule_policy("plateau", patients=3)
