"""Behaviour cloning: a network agrees with its teacher on episodes it was not taught, and PPO can start from it."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from esper.leyline import DecisionSettings, EpisodeFinished, LifecycleOp
from esper.nissa import Checkpoints
from esper.simic.building import build
from esper.simic.cloning import (
    CloningError,
    PolicyNetwork,
    clone_rule,
    require_warm_start,
    warm_start,
)
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import make_env
from esper.simic.env.cases import CasePool
from esper.simic.env.episodes import Episodes
from esper.simic.env.making import TOY_HORIZON
from esper.simic.evaluation import LearnedPlayer, Player, RulePlayer
from esper.simic.offline.dataset import write_episodes
from esper.simic.offline.recorder import LogProbs, record_episodes
from esper.simic.offline.recording import Recording
from esper.simic.trainer import train_ppo_vectorized
from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.controller import Controller, NetworkRecord
from esper.tamiyo.rules import rule_policy
from tiny_controllers import tiny_controller

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")
RATIOS = DecisionSettings(observation_units="ratios")


def toy_cases(count: int, first: int = 0) -> list[str]:
    return [f"toy:draw={first + number}" for number in range(count)]


def config(**changes: object) -> TrainingConfig:
    small = {
        "num_envs": 8,
        "num_minibatches": 1,
        "hidden_size": 64,
        "rounds": 1,
        "eval_every": 0,
        "pool_cases": 50,
    }
    return TrainingConfig.preset("toy", **{**small, **changes})


def recorded(rule: str, episodes: int, *, first: int = 0, num_envs: int = 8) -> Recording:
    envs = make_env("toy", num_envs, decisions=config().decisions).episodes
    wanted = [(case, 0) for case in toy_cases(episodes, first)]
    recording, played = record_episodes(RulePlayer(lambda _: rule_policy(rule)), envs, wanted, policy=rule)
    assert [episode.case for episode in played] == [case for case, _ in wanted]
    return recording


@pytest.fixture(scope="module")
def teacher() -> Recording:
    return recorded("probe_and_keep", 72)


@pytest.fixture(scope="module")
def taught(teacher: Recording) -> PolicyNetwork:
    network = PolicyNetwork(teacher.space, hidden_size=64, notes={"config": config().to_dict()})
    network.fit(teacher.split(16)[0], passes=20, lr=6e-3)
    return network


def test_a_clone_agrees_with_its_teacher_on_held_out_episodes(
    teacher: Recording, taught: PolicyNetwork
) -> None:
    _, held_out = teacher.split(16)
    untaught = PolicyNetwork(teacher.space, hidden_size=64).agreement(held_out)
    agreement = taught.agreement(held_out)
    assert agreement.joint > 0.9
    assert agreement.acting is not None
    assert agreement.acting > 0.8
    assert untaught.joint < 0.6
    assert agreement.log_likelihood > untaught.log_likelihood
    assert (
        agreement.log_likelihood < agreement.operation_log_likelihood < 0
    )  # nor is slot or blueprint certain
    assert agreement.by_head["op"] is not None
    assert agreement.by_head["op"] > 0.9
    assert agreement.by_head["style"] is None  # frozen: there was no choice
    assert agreement.steps <= held_out.steps


def test_the_loss_falls_and_is_reported(teacher: Recording) -> None:
    seen: list[tuple[int, float]] = []
    network = PolicyNetwork(teacher.space, hidden_size=64)
    report = network.fit(
        teacher.part(range(24)), passes=3, held_out=teacher.part([30]), progress=lambda *now: seen.append(now)
    )
    assert seen == list(enumerate(report.losses))
    assert report.losses[2] < report.losses[0]
    assert report.held_out is not None
    assert report.held_out == network.agreement(teacher.part([30]))


def test_step_by_step_it_decides_what_it_was_judged_to(taught: PolicyNetwork) -> None:
    """Agreement replays whole sequences; acting goes step by step: both are the same network."""
    envs = make_env("toy", 4, decisions=config().decisions).episodes
    wanted = [(case, 0) for case in toy_cases(4, 900)]
    recording, _ = record_episodes(LearnedPlayer(taught.actor), envs, wanted, policy="taught")
    assert taught.agreement(recording).joint == 1.0
    untaught = PolicyNetwork(
        taught.space, hidden_size=64, seed=3
    )  # nothing but its inputs tells it what to do
    recording, _ = record_episodes(LearnedPlayer(untaught.actor), envs, wanted, policy="untaught")
    assert len(set(recording.action[:, 0].tolist())) > 1
    assert untaught.agreement(recording).joint == 1.0


def test_steps_without_a_choice_are_neither_taught_nor_counted(teacher: Recording) -> None:
    few, network = teacher.part([0, 1]), PolicyNetwork(teacher.space, hidden_size=64)
    waits = few.action[:, 0] == LifecycleOp.WAIT
    operations = network.policy.layout.block(few.mask, "op")  # (step, 1, op), a view
    operations[waits] = torch.arange(operations.shape[-1]) == LifecycleOp.WAIT
    evaluation, _, _ = network._evaluate(few)
    free, steps = ~waits, int((~waits).sum())
    assert 0 < steps < few.steps
    loss, counted = network._loss(few)
    agreement = network.agreement(few)
    assert counted == agreement.steps == steps
    assert loss.item() == pytest.approx(-evaluation.log_prob[free].sum(1).mean().item())
    assert agreement.log_likelihood == pytest.approx(-loss.item())


def test_a_network_survives_the_disk(taught: PolicyNetwork, teacher: Recording, tmp_path: Path) -> None:
    path = tmp_path / "clone.safetensors"
    taught.save(path)
    again = PolicyNetwork.load(path)
    assert again.agreement(teacher) == taught.agreement(teacher)
    assert again.notes == taught.notes
    write_episodes(tmp_path / "other.safetensors", teacher)
    with pytest.raises(
        CloningError, match=r"other\.safetensors: no cloned .*its format is 'esper-episodes-1'"
    ):
        PolicyNetwork.load(tmp_path / "other.safetensors")
    with pytest.raises(CloningError, match="no cloned policy can be read"):
        PolicyNetwork.load(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("settings", [RATIOS, DecisionSettings(retire=True)])
def test_a_network_knows_what_it_observes(
    settings: DecisionSettings, teacher: Recording, tmp_path: Path
) -> None:
    network = PolicyNetwork(teacher.space.under(settings), hidden_size=16)
    network.save(tmp_path / "clone.safetensors")
    assert PolicyNetwork.load(tmp_path / "clone.safetensors").space == network.space


def test_what_does_not_fit_is_refused(teacher: Recording) -> None:
    other = GrowthSpace(teacher.space.slot_config, ("norm",))
    with pytest.raises(CloningError, match=r"the network is for .* and norm"):
        PolicyNetwork(other).agreement(teacher)
    for change, name in ((DecisionSettings(retire=True), "retire"), (RATIOS, "units")):
        with pytest.raises(CloningError, match=f"the recording is of decisions with {name}="):
            PolicyNetwork(teacher.space.under(change)).agreement(teacher)
    with pytest.raises(ValueError, match="passes is 0"):
        PolicyNetwork(teacher.space).fit(teacher, passes=0)


# Warm starts


def test_ppo_starts_from_a_saved_clone(taught: PolicyNetwork, tmp_path: Path) -> None:
    path = tmp_path / "clone.safetensors"
    taught.save(path)
    started = config(warm_start=str(path))
    require_warm_start(started)
    training = build(started)
    before = {name: value.clone() for name, value in training.agent.policy.state_dict().items()}
    assert warm_start(training, started) is None
    for name, value in training.agent.policy.state_dict().items():
        wanted = before[name] if name.startswith("critic.") else taught.policy.state_dict()[name]
        assert torch.equal(value, wanted), name
    with pytest.raises(ConfigError, match="this run has 16 and 1"):
        warm_start(build(config(hidden_size=16)), replace(started, hidden_size=16))


def test_ppo_starts_from_a_controller(tmp_path: Path) -> None:
    """Of another suite's slots and blueprints; the critic starts as it is."""
    controller = tiny_controller(network=NetworkRecord(hidden_size=64, width=64, key_size=32, sight=2))
    controller.save(tmp_path / "mine")
    started = config(warm_start=str(tmp_path / "mine"))
    require_warm_start(started)
    training = build(started)
    before = {name: value.clone() for name, value in training.agent.policy.state_dict().items()}
    assert warm_start(training, started) is None
    for name, value in training.agent.policy.state_dict().items():
        assert torch.equal(value, controller.weights.get(name, before[name])), name
    assert {name.partition(".")[0] for name in before.keys() - controller.weights.keys()} == {"critic"}
    tiny_controller().save(tmp_path / "tiny")
    with pytest.raises(
        ConfigError, match=r"hidden_size 11 and num_lstm_layers 1; this run has 64 and 1 \(.* does not fit\)"
    ):
        warm_start(training, config(warm_start=str(tmp_path / "tiny")))


def test_ppo_starts_from_a_controller_that_sees_less() -> None:
    """What a shipped controller does not read counts nothing at first; the rest is as it was."""
    started = config(warm_start="cpu-v1")
    training, weights = build(started), Controller.load("cpu-v1").weights
    warm_start(training, started)
    own = training.agent.policy.state_dict()
    for name, value in weights.items():
        if name in ("slot_encoder.0.weight", "joint_encoder.0.weight"):
            assert not own[name][:, value.shape[1] :].any()
            own[name] = own[name][:, : value.shape[1]]
        assert torch.equal(own[name], value), name


def test_ppo_starts_from_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.simic.cloning.EPISODES", 8)
    started = config(warm_start="plateau")
    report = warm_start(build(started), started)
    assert report is not None
    assert report.training.joint > 0.9


def test_a_rule_is_cloned_from_as_many_instances_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy's pool has ten million pairs of a case and a host seed: just those that are played are made."""
    asked: list[tuple[str, int]] = []
    made = itertools.count()
    pairs = CasePool.pairs

    def record(
        player: Player,
        episodes: Episodes,
        wanted: list[tuple[str, int]],
        *,
        policy: str,
        log_probs: LogProbs | None = None,
    ) -> tuple[Recording, list[EpisodeFinished]]:
        asked.extend(wanted)
        return record_episodes(player, episodes, wanted, policy=policy, log_probs=log_probs)

    monkeypatch.setattr("esper.simic.cloning.record_episodes", record)
    monkeypatch.setattr(CasePool, "pairs", lambda pool: ((next(made), pair)[1] for pair in pairs(pool)))
    clone_rule(config(pool_cases=5), "plateau", episodes=11, held_out=2)
    assert [host_seed % 1000 for _, host_seed in asked] == [0] * 5 + [1] * 5 + [2]  # of 1000 a case
    assert len({case for case, _ in asked}) == 5
    assert next(made) == 11


def test_a_run_starts_warm_once(
    taught: PolicyNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it begins, and not when it goes on."""
    calls: list[str | None] = []
    monkeypatch.setattr("esper.simic.trainer.warm_start", lambda _, config: calls.append(config.warm_start))
    path = tmp_path / "clone.safetensors"
    taught.save(path)
    started, store = config(warm_start=str(path)), Checkpoints(tmp_path / "checkpoints")
    result = train_ppo_vectorized(started, checkpoints=store)
    assert calls == [str(path)]
    path.unlink()
    train_ppo_vectorized(replace(started, rounds=2), checkpoints=store, resume=result.last_checkpoint)
    assert calls == [str(path)]


def test_a_rule_is_cloned_and_judged_on_other_episodes() -> None:
    network, report = clone_rule(config(), "plateau", episodes=24, held_out=8)
    assert report.held_out is not None
    assert report.held_out.steps < report.training.steps
    assert network.notes["rule"] == "plateau"
    assert network.notes["env_steps"] == 24 * TOY_HORIZON
    with pytest.raises(CloningError, match="no rule is named 'nobody'"):
        clone_rule(config(), "nobody")


@pytest.mark.parametrize(
    ("given", "message"),
    [("nobody", "warm_start is 'nobody'; expected one of wait"), ("missing.safetensors", "no cloned policy")],
)
def test_mistakes_are_told_before_anything_takes_time(given: str, message: str) -> None:
    for normalised in (False, True):  # whether it is there comes before what it knows
        with pytest.raises(ConfigError, match=message):
            train_ppo_vectorized(config(warm_start=given, normalize_observations=normalised))


@pytest.mark.parametrize("given", ["none", "two words", "weights.pt"])
def test_a_warm_start_is_a_rule_or_a_file(given: str) -> None:
    with pytest.raises(ConfigError, match=r"warm_start is .*expected the name of a rule or controller"):
        config(warm_start=given)
