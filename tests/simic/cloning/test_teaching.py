"""Teaching where the student goes: what the teacher would do is kept beside what was done, and learned."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from esper.leyline import HEAD_NAMES, ActionSpec, EpisodeFinished, LifecycleOp, Situation
from esper.runs.ship import controller_of_network
from esper.simic import teaching
from esper.simic.building import build
from esper.simic.cloning import CloningError, PolicyNetwork
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.episodes import Episodes
from esper.simic.evaluation import Player, Rewards, RulePlayer
from esper.simic.offline.recorder import record_episodes
from esper.simic.offline.recording import BY_STEP, Advised, Recording
from esper.simic.teaching import Lesson, record_advised, teach
from esper.tamiyo.actions import Actions
from esper.tamiyo.rules.policy import refusal

CONFIG = TrainingConfig.preset("toy", num_envs=4, num_minibatches=4, pool_cases=16, pool_host_seeds=2)


class Planting:
    """Plants in the first slot whenever it can, and prunes what is planted elsewhere."""

    def reset(self) -> None:
        """There is nothing to forget."""

    def act(self, situation: Situation) -> ActionSpec:
        """Go on with the first slot, give back the others."""
        for number, slot in enumerate(situation.slots):
            kind = situation.cards[slot.name][0].name
            wanted = (
                [ActionSpec(LifecycleOp.PRUNE, slot.name)]
                if number
                else [
                    ActionSpec(LifecycleOp.ADVANCE, slot.name),
                    ActionSpec(LifecycleOp.GERMINATE, slot.name, kind),
                ]
            )
            for action in wanted:
                if refusal(action, situation) is None:
                    return action
        return ActionSpec()


class Waiting:
    """Never does anything."""

    def begin(self, num_envs: int) -> None:
        """There is nothing to forget."""

    def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
        """Wait."""
        del rewards
        waiting: Actions = np.stack([episodes.encode(env, ActionSpec()) for env in range(episodes.num_envs)])
        return waiting


def planting(cases: Sequence[str]) -> Player:
    del cases
    return RulePlayer(lambda _: Planting())


def advised(student: Player | None, count: int = 6) -> list[Advised]:
    training = build(CONFIG)
    try:
        wanted = list(islice(training.pool.pairs(), count))
        lessons, utilities = record_advised(
            planting, student, training.envs.episodes, wanted, policy="planting"
        )
    finally:
        training.envs.close()
    assert len(utilities) == count
    return lessons


def test_a_teacher_that_plays_does_what_it_says() -> None:
    for lesson in advised(None):
        assert lesson.action[:, 0].any()
        assert torch.equal(lesson.action, lesson.advice)


def test_advice_is_of_the_states_of_the_student_who_remembers_what_it_did_itself() -> None:
    lessons = advised(Waiting())
    assert [len(lesson) for lesson in lessons] == [4, 2]
    for lesson in lessons:
        said = lesson.advice[:, 0]
        assert set(said.tolist()) == {LifecycleOp.GERMINATE}  # nothing is ever there that could be advanced
        assert not lesson.action.any()
        before = lesson.inputs().previous_action
        inner = torch.ones(lesson.steps, dtype=torch.bool)
        inner[lesson.first] = False
        assert not before[inner].any()  # what it did, not what it was told


def test_a_part_keeps_its_advice() -> None:
    lesson = advised(Waiting())[0]
    marked = replace(lesson, advice=torch.arange(lesson.steps)[:, None].expand_as(lesson.advice))
    part = marked.part([2, 0])
    assert isinstance(part, Advised)
    length = lesson.length.tolist()
    wanted = [*range(sum(length[:2]), sum(length[:3])), *range(length[0])]
    assert part.advice[:, 0].tolist() == wanted
    assert part.lesson is part.advice


class Marking:
    """Says something else in every env and epoch: in which slot to plant."""

    def __init__(self, env: int) -> None:
        self._env = env

    def reset(self) -> None:
        """There is nothing to forget."""

    def act(self, situation: Situation) -> ActionSpec:
        """Plant in the slot of this env and epoch."""
        slot = situation.slots[marked(self._env, situation.signals.epoch, len(situation.slots))]
        return ActionSpec(LifecycleOp.GERMINATE, slot.name, situation.cards[slot.name][0].name)


def marked(env: int, epoch: int, slots: int) -> int:
    return (env * env + epoch // (env + 1)) % slots


def test_advice_lies_beside_the_step_it_was_given_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of episodes that end early, and without those whose host was lost."""

    def cut(*args: Any, **kwargs: Any) -> tuple[Recording, list[EpisodeFinished]]:
        recording, played = record_episodes(*args, **kwargs)
        steps = torch.cat([recording.places([0]), recording.places([1])[:7], recording.places([2, 3])])
        shorter = {name: getattr(recording, name)[steps] for name in BY_STEP}
        length = recording.length.clone()
        length[1] = 7
        played[2] = replace(played[2], lost=True)
        return replace(recording, **shorter, length=length), played

    monkeypatch.setattr(teaching, "record_episodes", cut)
    training = build(CONFIG)
    lessons, utilities = record_advised(
        lambda _: RulePlayer(Marking),
        Waiting(),
        training.envs.episodes,
        list(islice(training.pool.pairs(), 4)),
        policy="marking",
    )
    training.envs.close()
    (lesson,) = lessons
    assert lesson.length.tolist() == [20, 7, 20]
    assert len(utilities) == 3
    slots = training.envs.space.slot_count
    wanted = [
        marked(env, epoch, slots) for env, epochs in ((0, 20), (1, 7), (3, 20)) for epoch in range(epochs)
    ]
    assert lesson.advice[:, HEAD_NAMES.index("slot")].tolist() == wanted


def test_nothing_to_teach_with_is_refused() -> None:
    with pytest.raises(ValueError, match="rounds is 0"):
        teach(CONFIG, planting, "planting", rounds=0)
    with pytest.raises(ValueError, match="episodes is 0"):
        teach(CONFIG, planting, "planting", episodes=0)


def test_a_network_without_notes_is_no_controller() -> None:
    network = PolicyNetwork(build(CONFIG).envs.space)
    with pytest.raises(CloningError, match="no notes of the settings"):
        controller_of_network(network, name="x")


def test_illegal_advice_is_to_wait() -> None:
    class Illegal(Waiting):
        def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
            actions = super().act(episodes, rewards)
            actions[:, 0] = LifecycleOp.FOSSILIZE
            return actions

    training = build(CONFIG)
    lessons, _ = record_advised(
        lambda _: Illegal(),
        Waiting(),
        training.envs.episodes,
        list(islice(training.pool.pairs(), 4)),
        policy="x",
    )
    training.envs.close()
    assert not lessons[0].advice.any()


def test_a_taught_network_decides_as_its_teacher_and_becomes_a_controller(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    lessons: list[Lesson] = []
    network = teach(
        CONFIG,
        planting,
        "planting",
        rounds=2,
        episodes=8,
        passes=40,
        progress=lambda _, lesson: lessons.append(lesson),
    )
    assert len(lessons) == 2
    assert lessons[-1].agreement > 0.95
    assert lessons[-1].acting is not None
    assert lessons[-1].acting > 0.9
    controller = controller_of_network(network, name="planter")
    assert controller.card.summary == "taught by planting in 16 episodes of toy"
    assert controller.card.training.env_steps == 16 * 20
    folder = tmp_path_factory.mktemp("controllers") / "planter"
    controller.save(folder)
    again = type(controller).load(folder)
    TrainingConfig.of(again.card.training.settings)  # what a benchmark reads of it
    for name, value in network.policy.state_dict().items():
        if name in again.weights:
            assert torch.equal(again.weights[name], value)
