"""Offline runs: from data sets to a controller, stopped and gone on with, judged and refused."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import esper
from esper.benchmark.controllers import find_controller, open_controller
from esper.karn.console import line_of
from esper.leyline import RoundFinished, RunFinished, RunStarted
from esper.nissa import read_events
from esper.nissa.recorder import scalars
from esper.runs.offline import judge_offline
from esper.runs.ship import controller_of_run, require_checkpoint
from esper.runs.train import require_trainable
from esper.simic.agent.checkpoint import read_checkpoint
from esper.simic.agent.ppo import NonFiniteUpdateError
from esper.simic.cloning import require_warm_start
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.held_out import evaluate_checkpoint
from esper.simic.offline.dataset import DatasetError, write_episodes
from esper.simic.reports import News
from recorded_toy import random_episodes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "random.safetensors"
    write_episodes(path, random_episodes(40))
    return path


def config(data: Path, folder: Path, **changes: object) -> TrainingConfig:
    small: dict[str, object] = {
        "hidden_size": 16,
        "num_envs": 2,
        "num_minibatches": 1,
        "pool_cases": 9,
        "lr": 1e-3,
        "rounds": 3,
        "offline_batches": 4,
        "offline_batch": 7,
        "run_name": "offline",
    }
    given = {"offline": (str(data),), "run_directory": folder, **changes}
    return TrainingConfig.preset("toy", **{**small, **given})


def weights(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = read_checkpoint(run / "checkpoints" / "last.pt")["policy"]
    return found


def test_a_run_is_recorded_and_judged_like_any_other(data: Path, tmp_path: Path) -> None:
    news: list[News] = []
    chosen = config(data, tmp_path, run_checkpoint_every=2)
    result = esper.train(chosen, progress=news.append)
    assert (result.rounds, result.env_steps, result.best_score) == (3, 0, None)
    rounds = [event for event in news if isinstance(event, RoundFinished)]
    assert [event.round for event in rounds] == [1, 2, 3]
    for event in rounds:
        assert (event.minibatches_applied, event.episodes, event.mean_gain) == (4, 0, None)
        assert event.q_loss is not None
        assert math.isfinite(event.q_loss)
        assert event.entropy_by_head["style"] is None  # frozen: there was no choice
    assert rounds[-1].learning_rate < rounds[0].learning_rate == 1e-3
    assert f"Q loss {rounds[0].q_loss:.4f}" in str(line_of(rounds[0]))
    run = tmp_path / "offline"
    recorded = [record.event for record in read_events(run)]
    assert isinstance(recorded[0], RunStarted)
    assert isinstance(recorded[-1], RunFinished)
    steps = [scalars(record)[0] for record in read_events(run, kinds=["round_finished"])]
    assert steps == [1, 2, 3]  # it took no steps on hosts: charts go by rounds
    scores = evaluate_checkpoint(chosen, require_checkpoint(run), episodes=2, policies=())
    assert {score.policy for score in scores} == {"wait", "learned"}
    controller = controller_of_run(run, require_checkpoint(run), name="from-data")
    taught = controller.card.training
    assert (taught.rounds, taught.env_steps) == (3, None)  # what the data took is not known
    benched = open_controller(find_controller(run), "toy")
    assert benched.env_steps is None


@pytest.mark.filterwarnings("ignore:lr is 1e.30:RuntimeWarning")
def test_a_run_that_learns_nothing_any_more_fails_and_says_so(data: Path, tmp_path: Path) -> None:
    """Weights that have gone to infinity give no finite loss: every update is skipped."""
    with pytest.raises(NonFiniteUpdateError, match=r"3 rounds in a row.*last\.pt.*Lower lr"):
        esper.train(config(data, tmp_path, lr=1e30, rounds=9))
    rounds = [record.event for record in read_events(tmp_path / "offline", kinds=["round_finished"])]
    assert [event.minibatches_applied for event in rounds if isinstance(event, RoundFinished)][-3:] == [0] * 3
    (last,) = [record.event for record in read_events(tmp_path / "offline", kinds=["run_finished"])]
    assert isinstance(last, RunFinished)
    assert last.status == "failed"
    assert require_checkpoint(tmp_path / "offline").exists()


@pytest.mark.filterwarnings("ignore:lr is 1e.30:RuntimeWarning")
def test_a_run_that_goes_on_fails_where_it_would_have_failed(data: Path, tmp_path: Path) -> None:
    def rounds(name: str) -> int:
        return sum(1 for _ in read_events(tmp_path / name, kinds=["round_finished"]))

    whole = config(data, tmp_path, run_name="whole", lr=1e30, rounds=9)
    with pytest.raises(NonFiniteUpdateError):
        esper.train(whole)
    part = config(data, tmp_path, run_name="part", lr=1e30, rounds=9)
    esper.train(replace(part, rounds=rounds("whole") - 1))
    for _ in range(2):
        with pytest.raises(NonFiniteUpdateError):
            esper.train(part, resume=True)
    assert rounds("part") == rounds("whole") + 1  # one more each time that it is tried again


def test_a_run_that_goes_on_equals_one_that_never_stopped(data: Path, tmp_path: Path) -> None:
    whole = config(data, tmp_path, run_name="whole")
    esper.train(whole)
    part = config(data, tmp_path, run_name="part", lr_anneal_steps=3)
    with pytest.warns(UserWarning, match="the policy learns in the last"):
        esper.train(replace(part, rounds=1))
    esper.train(part, resume=True)
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "part")
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert not torch.equal(one["actor.heads.op.weight"], torch.zeros_like(one["actor.heads.op.weight"]))


def test_the_policy_learns_when_the_critics_have(data: Path, tmp_path: Path) -> None:
    """In the last share of the annealing, from the first learning rate on; without annealing throughout."""
    news: list[News] = []
    esper.train(config(data, tmp_path, rounds=5, offline_policy_share=0.4), progress=news.append)
    rounds = [event for event in news if isinstance(event, RoundFinished)]
    assert [event.policy_loss is not None for event in rounds] == [False, False, False, True, True]
    assert [event.entropy is not None for event in rounds] == [False, False, False, True, True]
    assert all(event.q_loss is not None for event in rounds)
    saved = read_checkpoint(tmp_path / "offline" / "checkpoints" / "last.pt")["extra"]["offline"]
    critics, policy = saved["optimizer"]["param_groups"]
    assert critics["lr"] == pytest.approx(1e-3 * (1 - 0.9 * 0.8))
    assert policy["lr"] == pytest.approx(1e-3 * (1 - 0.9 * 0.5))
    news.clear()
    throughout = config(data, tmp_path, run_name="throughout", rounds=2, lr_anneal_steps=0)
    esper.train(throughout, progress=news.append)
    assert all(event.policy_loss is not None for event in news if isinstance(event, RoundFinished))


def test_the_seed_and_the_data_decide(data: Path, tmp_path: Path) -> None:
    variants: dict[str, dict[str, object]] = {"a": {}, "b": {}, "c": {"seed": 1}, "d": {"offline_beta": 0.0}}
    for name, changes in variants.items():
        esper.train(config(data, tmp_path, run_name=name, rounds=1, **changes))
    a, b, c, d = (weights(tmp_path / name)["actor.heads.op.weight"] for name in "abcd")
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not torch.equal(a, d)


def test_the_rewards_unit_is_that_of_ppo(data: Path, tmp_path: Path) -> None:
    """The policy's own critic speaks of rewards as PPO will: divided by the spread of those it has seen."""
    esper.train(config(data, tmp_path, rounds=1))
    saved = read_checkpoint(tmp_path / "offline" / "checkpoints" / "last.pt")["reward_normalizer"]
    rewards = random_episodes(40).reward.double()
    assert saved["count"] == len(rewards)
    assert (saved["m2"] / saved["count"]).sqrt().item() == pytest.approx(rewards.std(unbiased=False).item())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gamma": 0.9},
            r"offline names data .*they have reward gamma 1\.0 instead of 0\.9; set suite",
        ),
        ({"suite": "toy_slots"}, "they have slots"),
        ({"horizon": 19}, "they have horizon 20 instead of 19"),
        ({"settle": "committed"}, "they have settle worth instead of committed"),
        ({"warm_start": "plateau"}, "warm_start is 'plateau'; an offline run begins anew"),
    ],
)
def test_data_that_do_not_fit_are_refused_before_anything_is_made(
    changes: dict[str, object], message: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        esper.train(config(data, tmp_path, **changes))
    assert not (tmp_path / "offline").exists()


def test_what_the_critic_may_see_must_have_been_recorded(data: Path, tmp_path: Path) -> None:
    recording = random_episodes(40)
    blind = replace(
        recording,
        privileged=recording.privileged[:, :0],
        terms=recording.terms.model_copy(update={"privileged": ()}),
    )
    write_episodes(tmp_path / "blind.safetensors", blind)
    with pytest.raises(
        ConfigError,
        match=r"privileged_critic is on, .* expected privileged_critic=False, --no-privileged-critic",
    ):
        require_trainable(config(tmp_path / "blind.safetensors", tmp_path))
    require_trainable(config(tmp_path / "blind.safetensors", tmp_path, privileged_critic=False))
    require_trainable(config(data, tmp_path, privileged_critic=False))
    with pytest.raises(DatasetError, match="is no data set: there is no such file"):
        require_trainable(config(tmp_path / "nothing", tmp_path))


def test_too_few_rounds_for_the_policy_to_begin_are_warned_of(data: Path, tmp_path: Path) -> None:
    words = r"rounds is 2, and the policy learns in the last 0\.2 of lr_anneal_steps=10"
    with pytest.warns(UserWarning, match=words):
        esper.train(config(data, tmp_path, rounds=2, lr_anneal_steps=10))


def test_observations_are_normalised_by_the_data(data: Path, tmp_path: Path) -> None:
    """The policy then sees them so, as PPO that goes on from it will; without, only the critics do."""
    chosen = config(data, tmp_path, normalize_observations=True, rounds=2, lr_anneal_steps=2)
    with pytest.warns(UserWarning, match="the policy learns in the last"):
        esper.train(replace(chosen, rounds=1))
    esper.train(chosen, resume=True)
    esper.train(replace(chosen, run_name="whole"))
    one, other = weights(tmp_path / "offline"), weights(tmp_path / "whole")
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    stats = read_checkpoint(tmp_path / "whole" / "checkpoints" / "last.pt")["observation_stats"]
    recording = random_episodes(40)
    assert stats["count"] == recording.steps
    seen = recording.inputs(3).observation.double()
    torch.testing.assert_close(stats["mean"], seen.mean(0))
    report = judge_offline(tmp_path / "whole", [data], updates=2)
    assert math.isfinite(report.fitted)
    require_warm_start(
        config(data, tmp_path, offline=(), warm_start=str(tmp_path / "whole"), normalize_observations=True)
    )
    with pytest.raises(ConfigError, match="normalize_observations is False, and was True in the run"):
        require_warm_start(config(data, tmp_path, offline=(), warm_start=str(tmp_path / "whole")))


def test_ppo_goes_on_from_an_offline_run(data: Path, tmp_path: Path) -> None:
    esper.train(config(data, tmp_path, rounds=1))
    going_on = config(
        data,
        tmp_path,
        offline=(),
        run_name="online",
        warm_start=str(tmp_path / "offline"),
        start_critic_rounds=1,
        start_kl=0.5,
        rounds=2,
        eval_every=0,
    )
    result = esper.train(going_on)
    assert result.env_steps == 2 * 2 * 20
    before, after = weights(tmp_path / "offline"), weights(tmp_path / "online")
    assert not torch.equal(before["actor.heads.op.weight"], after["actor.heads.op.weight"])
    run = tmp_path / "online"
    record = controller_of_run(run, require_checkpoint(run), name="further").card.training
    assert (record.rounds, record.env_steps) == (2, None)  # it had begun with more than its own steps


def test_a_run_on_hosts_is_no_offline_run(data: Path, tmp_path: Path) -> None:
    started = config(data, tmp_path)
    esper.train(replace(started, offline=(), rounds=1, eval_every=0))
    with pytest.raises(ConfigError, match=r"a run goes on under the settings .*these differ: offline"):
        esper.train(started, resume=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without CUDA")
def test_the_toy_is_refused_a_gpu_only_where_hosts_are_played(data: Path, tmp_path: Path) -> None:
    """What computes in an offline run is the learner."""
    with pytest.raises(ConfigError, match="torch finds no CUDA device"):
        require_trainable(config(data, tmp_path, device="cuda"))
    with pytest.raises(ConfigError, match="the toy has nothing to compute there"):
        require_trainable(config(data, tmp_path, device="cuda", offline=()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_learns_the_same_from_the_toys_data(data: Path, tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        esper.train(config(data, tmp_path, device=device, run_name=device))
    here, there = weights(tmp_path / "cpu"), weights(tmp_path / "cuda")
    assert all(torch.allclose(here[name], there[name].cpu(), atol=1e-3) for name in here)
