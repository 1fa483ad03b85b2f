"""What is recorded is what was seen, done and paid."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import esper
from esper.leyline import DecisionTaken, EpisodeFinished, LifecycleOp
from esper.nissa.event_file import read_run
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import make_env
from esper.simic.evaluation import RulePlayer
from esper.simic.offline.dataset import Dataset
from esper.simic.offline.recorder import EpisodeRecorder, RandomPlayer, record_episodes
from esper.simic.offline.recording import BY_EPISODE, BY_STEP, joined
from esper.simic.reward import RewardConfig
from esper.tamiyo.policy import NO_ACTION
from esper.tamiyo.rules import rule_policy
from recorded_toy import HOW, random_episodes

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")


def test_rewards_add_up_to_what_the_episodes_returned() -> None:
    episodes = make_env("toy", 3, reward=RewardConfig(gamma=1.0), decisions=HOW).episodes
    player = RandomPlayer(episodes.space.action_layout, torch.Generator().manual_seed(1))
    wanted = [(f"toy:draw={draw}", draw) for draw in range(7)]  # the last group has two places to spare
    recording, played = record_episodes(
        player, episodes, wanted, policy="random", log_probs=lambda: player.log_prob
    )
    assert [(row.case, row.host_seed) for row in recording.rows] == wanted
    assert {row.policy for row in recording.rows} == {"random"}
    assert [row.gain for row in recording.rows] == [episode.gain for episode in played]
    assert recording.length.tolist() == [episode.epochs for episode in played]
    expected = torch.tensor([episode.episode_return for episode in played])
    torch.testing.assert_close(recording.returns, expected.float(), atol=1e-6, rtol=0)
    assert recording.terminated.all()
    assert recording.privileged.shape == (recording.steps, 0)
    germinated = (recording.action[:, 0] == LifecycleOp.GERMINATE).sum()
    assert int(germinated) == sum(episode.operations["GERMINATE"] for episode in played)


def test_a_place_that_is_played_again_is_recorded_once() -> None:
    """An episode that the governor ends early keeps its place by another, which is not asked for."""
    recording = random_episodes(60, slots=1)  # one slot can ruin a host of the toy
    early = recording.length < 20
    assert bool(early.any())
    assert [row.rolled_back is not None for row in recording.rows] == early.tolist()
    assert len({row.case for row in recording.rows}) == len(recording) == 60


def test_probabilities_are_those_of_a_uniform_choice_head_after_head() -> None:
    recording = random_episodes(40)
    layout = recording.space.action_layout
    waits = recording.action[:, 0] == LifecycleOp.WAIT
    legal = layout.block(recording.mask, "op").squeeze(1).sum(-1)
    torch.testing.assert_close(recording.log_prob[waits], -legal[waits].float().log())
    assert bool((recording.log_prob[~waits] < -legal[~waits].float().log()).any())  # a slot was chosen too
    rule, _ = record_episodes(
        RulePlayer(lambda _: rule_policy("wait")),
        make_env("toy", 2).episodes,
        [("toy:draw=1", 0)],
        policy="wait",
    )
    assert rule.log_prob.isnan().all()  # nobody knows


def test_a_choice_that_does_not_matter_is_recorded_as_none() -> None:
    """Other libraries sample every head; what the operation does not use is no part of the decision."""
    env = make_env("toy", 2, on_illegal="noop", reward=RewardConfig(control_variate=False))
    recorder = env.episodes.watcher = EpisodeRecorder(env.episodes, policy="sampled")
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(20):
        env.step(env.action_space.sample())
    recording = recorder.take()
    assert recording is not None
    matters = recording.space.action_layout.relevance[recording.action[:, 0]]
    assert not recording.action[~matters].any()


def test_parts_are_whole_episodes() -> None:
    recording = random_episodes(40)
    part = recording.part([7, 3])
    assert part.rows == (recording.rows[7], recording.rows[3])
    assert part.length.tolist() == [int(recording.length[7]), int(recording.length[3])]
    begin, length = int(recording.first[7]), int(recording.length[7])
    for name in BY_STEP:
        own, whole = getattr(part, name)[:length], getattr(recording, name)[begin : begin + length]
        assert torch.equal(own, whole), name
    again = joined([recording.part(range(13)), recording.part(range(13, 40))])
    assert all(
        torch.equal(getattr(again, name), getattr(recording, name)) for name in (*BY_STEP, *BY_EPISODE)
    )
    assert again.rows == recording.rows
    other = random_episodes(2, gamma=0.9)
    with pytest.raises(ValueError, match=r"cannot be joined: reward gamma 0\.9 instead of 1"):
        joined([recording, other])
    with pytest.raises(ValueError, match=r"held_out is 40; expected 1\.\.39"):
        recording.split(40)


def test_what_a_network_is_given() -> None:
    recording = random_episodes(40).part([3, 17])  # the second was played where another had ended
    inputs, first = recording.inputs(3), recording.first.tolist()
    assert inputs.observation.shape[1] == recording.observation.shape[1] + 3
    assert (inputs.previous_action[first] == NO_ACTION).all()
    assert (inputs.previous_reward[first] == 0.0).all()
    assert torch.equal(inputs.previous_action[1 : first[1]], recording.action[: first[1] - 1])
    assert bool((inputs.previous_reward != 0.0).any())
    plan = recording.plan()
    assert (plan.segments, plan.length) == (2, int(recording.length.max()))


def test_values_follow_their_steps() -> None:
    recording = random_episodes(40).part([3, 7])
    end = int(recording.length[0]) - 1
    value = torch.arange(recording.steps).float() + 1.0
    after = recording.after(value)
    assert after[end] == 0.0
    assert after[-1] == 0.0
    assert torch.equal(after[:end], value[1 : end + 1])
    assert recording.followed.all()
    cut = replace(recording, terminated=torch.tensor([False, True]))
    assert cut.followed.logical_not().nonzero().tolist() == [[end]]


def test_a_run_records_its_episodes(tmp_path: Path) -> None:
    """With the probabilities that PPO took its actions with, and the same however it was interrupted."""
    config = TrainingConfig.preset(
        "toy",
        num_envs=4,
        num_minibatches=1,
        rounds=3,
        eval_every=0,
        pool_cases=50,
        rollout_steps=30,
        run_record_episodes=True,
        run_directory=tmp_path,
        run_name="first",
    )
    esper.train(config)
    data = Dataset.open([tmp_path / "first"])
    assert len(data) == 16  # 90 steps in each of four envs
    assert {row.policy for row in data.rows} == {"first"}
    recording = data.read(range(16))
    assert recording.privileged.shape[1] == 3
    logged = read_run(tmp_path / "first", kinds=["episode_finished", "decision_taken"])
    finished = [record.event for record in logged if isinstance(record.event, EpisodeFinished)]
    returns = sorted(event.episode_return for event in finished)
    torch.testing.assert_close(recording.returns.sort().values, torch.tensor(returns), atol=1e-5, rtol=0)
    known = {
        (event.env, event.episode, event.epoch): event.log_prob
        for event in (record.event for record in logged)
        if isinstance(event, DecisionTaken)
    }
    places = {(event.case, event.host_seed): (event.env, event.episode) for event in finished}
    for row, begin, length in zip(
        data.rows, recording.first.tolist(), recording.length.tolist(), strict=True
    ):
        env, episode = places[row.case, row.host_seed]
        expected = [known[env, episode, epoch] for epoch in range(1, length + 1)]
        assert recording.log_prob[begin : begin + length].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_recorder_that_came_late_leaves_out_what_had_begun(tmp_path: Path) -> None:
    settings = {"num_envs": 2, "num_minibatches": 1, "eval_every": 0, "pool_cases": 9, "rollout_steps": 15}
    where = {"run_directory": tmp_path, "run_name": "late", "run_record_episodes": True}
    config = TrainingConfig.preset("toy", **settings, **where, rounds=1)
    esper.train(config)
    assert not (tmp_path / "late" / "episodes").exists()  # no episode has ended
    esper.train(replace(config, rounds=3), resume=True)
    data = Dataset.open([tmp_path / "late"])
    assert len(data) == 2  # the second of each env; the first had begun before
    assert data.length.tolist() == [20, 20]
