"""A6: normalisers. B2: the detector. A2: slots."""

import pytest
import torch

from esper.simic.agent import AnomalyDetector, AnomalyKind, RewardNormalizer, RunningMeanStd


def test_running_statistics_equal_those_of_all_the_data() -> None:
    data = torch.randn(31, 3, generator=torch.Generator().manual_seed(0)) * 5 + 2
    stats = RunningMeanStd((3,))
    for chunk in data.tensor_split((7, 8, 19)):
        stats.update(chunk)
    torch.testing.assert_close(stats.mean.float(), data.mean(0))
    torch.testing.assert_close(stats.var.float(), data.var(0, correction=0))
    assert stats.count == 31
    normal = stats.normalize(data)
    assert normal.dtype == torch.float32
    torch.testing.assert_close(normal.std(0, correction=0), torch.ones(3))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_only_valid_and_finite_rows_count(poison: float) -> None:
    data = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)) * 5 + 2
    valid = torch.arange(7) != 2
    kept = data[[0, 1, 3, 4, 6]]
    data[5, 1] = poison
    stats = RunningMeanStd((3,))
    for chunk in (slice(0, 3), slice(3, 7)):
        stats.update(data[chunk], valid[chunk])
    torch.testing.assert_close(stats.mean.float(), kept.mean(0))
    torch.testing.assert_close(stats.var.float(), kept.var(0, correction=0))
    assert stats.count == 5
    rewards = RewardNormalizer()
    rewards.update(data[:, 1], valid)
    torch.testing.assert_close(rewards.std.float(), kept[:, 1].std(correction=0))
    assert rewards.count == 5


def test_an_empty_batch_changes_nothing() -> None:
    for seen in (torch.empty(0, 2), torch.tensor([[1.0, 2.0], [4.0, 8.0]])):
        stats, rewards = RunningMeanStd((2,)), RewardNormalizer()
        stats.update(seen)
        rewards.update(seen)
        before = {**stats.state_dict(), "reward_mean": rewards.mean, "m2": rewards.m2}
        for nothing in (torch.empty(0, 2), torch.full((3, 2), torch.nan)):
            stats.update(nothing)
            rewards.update(nothing)
        after = {**stats.state_dict(), "reward_mean": rewards.mean, "m2": rewards.m2}
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_without_data_it_is_the_identity() -> None:
    x = torch.tensor([[1.5, -2.0]])
    torch.testing.assert_close(RunningMeanStd((2,)).normalize(x), x)


def test_running_mean_std_state_is_a_copy_of_mean_var_count() -> None:
    stats = RunningMeanStd((2,))
    stats.update(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    state = stats.state_dict()
    assert set(state) == {"mean", "var", "count"}
    stats.update(torch.ones(9, 2))
    other = RunningMeanStd((2,))
    other.load_state_dict(state)
    assert other.mean.tolist() == [2.0, 3.5]
    state["mean"].add_(1)
    assert other.mean.tolist() == [2.0, 3.5]
    with pytest.raises(ValueError, match="expected exactly"):
        other.load_state_dict({"mean": state["mean"]})
    with pytest.raises(ValueError, match="mean has shape"):
        RunningMeanStd((3,)).load_state_dict(state)
    with pytest.raises(ValueError, match="batch has shape"):
        stats.update(torch.ones(3))


def test_rewards_are_scaled_neither_centred_nor_clipped() -> None:
    rewards = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    normalizer = RewardNormalizer()
    normalizer.update(rewards[0])
    normalizer.update(rewards[1])
    std = rewards.std(correction=0)
    torch.testing.assert_close(normalizer.normalize(rewards), rewards / std)
    rare = torch.tensor([1e6, -1e6])  # a crash among small rewards is as far from them as it was
    torch.testing.assert_close(normalizer.normalize(rare), rare / std)


def test_a_constant_reward_has_no_scale() -> None:
    normalizer = RewardNormalizer()
    normalizer.update(torch.ones(8))
    assert normalizer.normalize(torch.tensor([1.0])).item() == 1.0
    normalizer.update(torch.empty(0))
    assert normalizer.count == 8


def test_reward_normalizer_state_round_trip() -> None:
    normalizer = RewardNormalizer()
    normalizer.update(torch.tensor([1.0, 2.0, 4.0]))
    state = normalizer.state_dict()
    assert set(state) == {"mean", "m2", "count"}
    other = RewardNormalizer()
    other.load_state_dict(state)
    assert torch.equal(other.std, normalizer.std)
    with pytest.raises(ValueError, match="expected exactly"):
        other.load_state_dict({**state, "var": state["m2"]})


QUIET = {"ratio_max": 1.2, "ratio_min": 0.8, "explained_variance": 0.9}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"ratio_max": 5.01}, AnomalyKind.RATIO_EXPLOSION),
        ({"ratio_min": 0.09}, AnomalyKind.RATIO_COLLAPSE),
        ({"explained_variance": 0.09}, AnomalyKind.VALUE_COLLAPSE),
    ],
)
def test_each_check_raises_beyond_its_threshold(change: dict[str, float], kind: AnomalyKind) -> None:
    detector = AnomalyDetector(warmup_updates=0)
    at_the_edge = {"ratio_max": 5.0, "ratio_min": 0.1, "explained_variance": 0.1}
    assert detector.check(**at_the_edge, has_numerical_issue=False) == ()
    found = detector.check(**{**QUIET, **change}, has_numerical_issue=False)
    assert [anomaly.kind for anomaly in found] == [kind]
    assert detector.counts[kind] == 1


def test_numerical_trouble_is_an_anomaly_and_unknown_is_not() -> None:
    detector = AnomalyDetector()
    unknown = {"ratio_max": None, "ratio_min": None, "explained_variance": None}
    found = detector.check(**unknown, has_numerical_issue=True)
    assert [anomaly.kind for anomaly in found] == [AnomalyKind.NUMERICAL_INSTABILITY]


def test_a_young_critic_is_left_in_peace() -> None:
    detector = AnomalyDetector(warmup_updates=2)
    poor = {**QUIET, "explained_variance": -1.0}
    assert [len(detector.check(**poor, has_numerical_issue=False)) for _ in range(3)] == [0, 0, 1]
    other = AnomalyDetector(warmup_updates=2)
    other.load_state_dict(detector.state_dict())
    assert (other.updates_seen, other.counts) == (detector.updates_seen, detector.counts)


def test_thresholds_are_checked() -> None:
    detector = AnomalyDetector()
    assert (detector.max_ratio_threshold, detector.min_ratio_threshold) == (5.0, 0.1)
    assert detector.min_explained_variance == 0.1
    with pytest.raises(ValueError, match=r"max_ratio_threshold is 1\.0; expected a number > 1"):
        AnomalyDetector(max_ratio_threshold=1.0)
    with pytest.raises(ValueError, match="min_ratio_threshold is"):
        AnomalyDetector(min_ratio_threshold=1.0)
    with pytest.raises(ValueError, match="min_explained_variance is"):
        AnomalyDetector(min_explained_variance=1.1)
    with pytest.raises(ValueError, match="warmup_updates is -1; expected a whole number >= 0"):
        AnomalyDetector(warmup_updates=-1)
    with pytest.raises(ValueError, match="expected"):
        AnomalyDetector().load_state_dict({"updates_seen": 1})
    assert not hasattr(AnomalyDetector(), "__dict__")
