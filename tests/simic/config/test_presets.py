"""Presets are known configurations, and say what they are for."""

import pytest

from esper.leyline import HEAD_NAMES
from esper.simic import TrainingConfig
from esper.simic.config.checks import ConfigError
from esper.simic.config.presets import PRESETS
from esper.tolaria.tasks import suite_names, task
from esper.tolaria.worlds.toy.instance import TOY_SUITES


def test_there_are_those_that_the_manual_names() -> None:
    assert list(PRESETS) == [
        "toy",
        "demo",
        "cpu",
        "cpu_mixers",
        "shift",
        "stream",
        "hosts",
        "adapt",
        "adapt_stream",
        "cifar10",
    ]
    assert all(preset.purpose for preset in PRESETS.values())


@pytest.mark.parametrize("name", ["demo", "cpu", "cpu_mixers", "stream"])
def test_what_and_where_are_learned_and_how_is_not(name: str) -> None:
    config = TrainingConfig.preset(name)
    assert set(HEAD_NAMES) - set(config.decisions.frozen_heads) == {"op", "slot", "blueprint"}
    assert config.gamma == 1.0


def test_on_streams_what_was_grown_can_be_given_back() -> None:
    config = TrainingConfig.preset("stream")
    assert config.decisions.retire
    assert config.horizon is None
    assert task("stream").epochs == 100
    assert config.num_envs < TrainingConfig.preset("cpu").num_envs


def test_a_preset_can_be_changed() -> None:
    config = TrainingConfig.preset("demo", lr=0.5, freeze_style=None)
    assert config.lr == 0.5
    assert config.freeze_style is None
    assert config.suite == "cpu"
    with pytest.raises(ConfigError, match="no setting 'gama'; did you mean 'gamma'"):
        TrainingConfig.preset("demo", gama=1)


def test_an_unknown_preset_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"no preset is named 'demmo'; there are toy, .*did you mean 'demo'"
    ):
        TrainingConfig.preset("demmo")


@pytest.mark.parametrize(
    "name", ["toy", "demo", "cpu", "cpu_mixers", "shift", "stream", "hosts", "adapt", "adapt_stream"]
)
def test_presets_name_suites_that_exist(name: str) -> None:
    assert TrainingConfig.preset(name).suite in (*suite_names(), *TOY_SUITES)


def test_cifar10_is_a_task() -> None:
    assert task(TrainingConfig.preset("cifar10").suite).epochs == 30
