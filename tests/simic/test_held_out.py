"""The final score: paired with waiting, on what nothing was trained on, the test split opened only then."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from esper.leyline import HostProtocol
from esper.nissa import Checkpoints
from esper.simic.building import build, evaluation_episodes
from esper.simic.config.training_config import TrainingConfig
from esper.simic.evaluation import RulePlayer, judge_cases
from esper.simic.held_out import UnfitCaseError, evaluate_checkpoint, held_out_cases
from esper.simic.trainer import train_ppo_vectorized
from esper.tamiyo.rules import rule_policy
from esper.tolaria import final_report
from esper.tolaria.data import TaskData
from esper.tolaria.tasks import forget, register, suite
from esper.tolaria.worlds.toy.instance import TOY_SUITES
from tiny_tasks import tiny_task

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")


def small(**changes: object) -> TrainingConfig:
    settings: dict[str, object] = {
        "suite": "toy",
        "num_envs": 2,
        "num_minibatches": 1,
        "hidden_size": 16,
        "rounds": 1,
        "eval_every": 0,
        "pool_cases": 3,
        "pool_host_seeds": 1,
    }
    return TrainingConfig.of(settings | changes)


def trained(config: TrainingConfig, folder: Path) -> Path:
    path = train_ppo_vectorized(config, checkpoints=Checkpoints(folder / "checkpoints")).last_checkpoint
    assert path is not None
    return path


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path / "cache"))
    register(tiny_task())
    yield "tiny"
    forget("tiny")


def test_held_out_cases_are_frozen_and_their_hosts_new() -> None:
    cases = held_out_cases("toy", 5, 0)
    assert [case for case, _ in cases] == list(TOY_SUITES["toy"].held_out(5))
    assert held_out_cases("toy", 5, 0) == cases
    hosts = {host for seed in (0, 1) for _, host in held_out_cases("toy", 5, seed)}
    assert len(hosts) == 10
    assert min(hosts) >= 2_000_000
    listed = [str(case) for case in suite("cpu").held_out]
    assert [case for case, _ in held_out_cases("cpu", len(listed) + 1, 0)] == [*listed, listed[0]]
    assert {case for case, _ in held_out_cases("mnist1d:noise=0.2", 3, 0)} == {"mnist1d:noise=0.2"}


def test_every_policy_meets_the_same_hosts_and_waiting_gains_nothing(tmp_path: Path) -> None:
    config = small()
    path = trained(config, tmp_path)
    told: list[tuple[str, int, int]] = []
    scores = evaluate_checkpoint(config, path, episodes=11, progress=lambda *each: told.append(each))
    policies = list(dict.fromkeys(policy for policy, _, _ in told))
    assert policies == [score.policy for score in scores] == ["wait", "learned", "random", "probe_and_keep"]
    assert (told[0], told[-1]) == (("wait", 0, 44), ("probe_and_keep", 44, 44))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    by_name = {score.policy: score for score in scores}
    waiting = by_name["wait"]
    assert (waiting.gain, waiting.gain_low, waiting.gain_high) == (0.0, 0.0, 0.0)
    assert waiting.added_parameters == 0.0
    for score in scores:
        assert score.episodes == 11
        assert score.gain == pytest.approx(score.utility - waiting.utility)
        assert score.gain_low is not None
        assert score.gain_high is not None
        assert score.gain_low <= score.gain <= score.gain_high
        assert score.test_accuracy is None  # the toy has no test split
    assert by_name["random"].gain < 0.0 < by_name["probe_and_keep"].gain
    assert evaluate_checkpoint(config, path, episodes=11) == scores


def test_the_test_split_is_opened_once_an_episode_and_not_in_training(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[TaskData] = []
    real = final_report.test_score

    def counted(model: object, data: TaskData) -> object:
        opened.append(data)
        return real(model, data)  # type: ignore[arg-type]

    monkeypatch.setattr(final_report, "test_score", counted)
    config = small(suite=tiny, eval_every=1, eval_episodes=2)
    path = trained(config, tmp_path)
    assert opened == []
    scores = evaluate_checkpoint(config, path, episodes=3, policies=())
    assert [score.policy for score in scores] == ["wait", "learned"]
    assert len(opened) == 6
    assert all(score.test_accuracy is not None and 0.0 <= score.test_accuracy <= 1.0 for score in scores)


def test_hosts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    config = small()
    path = trained(config, tmp_path)
    with pytest.raises(
        UnfitCaseError, match=r"judged on toy_slots: hosts have 4 slots .*there are places for 3"
    ):
        evaluate_checkpoint(config, path, name="toy_slots", episodes=1)
    with pytest.raises(UnfitCaseError, match="judged on mnist1d: "):
        evaluate_checkpoint(config, path, name="mnist1d", episodes=1)
    (score, *_) = evaluate_checkpoint(config, path, name="toy_shift", episodes=1, policies=())
    assert score.episodes == 1


def test_more_cases_than_envs_are_played_in_order() -> None:
    config = small()
    training = build(config)
    wanted = held_out_cases("toy", 7, 0)
    arena = evaluation_episodes(training, config, 3)
    looked: list[int] = []

    def look(host: HostProtocol) -> float:
        looked.append(host.report.epoch)
        return 0.5

    judged = judge_cases(RulePlayer(lambda _: rule_policy("wait")), arena, wanted, look=look)
    assert [(one.summary.case, one.summary.host_seed) for one in judged] == wanted
    assert all(one.summary.gain == pytest.approx(0.0) for one in judged)
    assert {one.seen for one in judged} == {0.5}
    assert looked == [arena.horizon] * 9  # at the end of every episode; the last two only fill their envs
