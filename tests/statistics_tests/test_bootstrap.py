"""Intervals hold what they promise, and arms that met the same hosts stay paired."""

import numpy as np
import pytest

from esper.statistics import (
    Estimate,
    Floats,
    Resamples,
    Scores,
    TwoSidedP,
    enough,
    interval,
    least_seeds,
    paired_difference,
)


def mean(scores: Floats) -> Floats:
    means: Floats = scores.mean(axis=(-3, -2, -1))
    return means


def test_the_value_is_that_of_the_scores_themselves() -> None:
    scores: Scores = np.arange(24.0).reshape(2, 3, 4)
    estimate = Resamples(3, 4).estimate(mean, scores)
    assert estimate.value == 11.5
    assert estimate.low < 11.5 < estimate.high


def test_a_constant_has_no_width() -> None:
    assert Resamples(3, 5).estimate(mean, np.full((2, 3, 5), 0.25)) == Estimate(0.25, 0.25, 0.25)


def test_instances_are_strata() -> None:
    """Instances differ by 1, seeds not at all: drawing seeds within instances changes nothing."""
    scores: Scores = np.broadcast_to(np.arange(7.0)[None, :, None], (1, 7, 3))
    fixed = Resamples(7, 3).estimate(mean, scores)
    assert (fixed.low, fixed.value, fixed.high) == (3.0, 3.0, 3.0)
    anew = Resamples(7, 3, new_instances=True).estimate(mean, scores)
    assert anew.low < 2.0
    assert anew.high > 4.0


def test_members_are_a_level_of_their_own() -> None:
    """Two controllers that differ by 1 on every host: more hosts do not make the interval narrow."""
    scores: Scores = np.broadcast_to(np.array([0.0, 1.0, 0.0, 1.0])[:, None, None], (4, 7, 11))
    estimate = Resamples(7, 11).estimate(mean, scores)
    assert estimate.value == 0.5
    assert (estimate.low, estimate.high) == (0.0, 1.0)


def test_arms_that_met_the_same_hosts_stay_paired() -> None:
    control = np.random.default_rng(1).normal(0.5, 0.2, (1, 6, 5))
    difference = Resamples(6, 5).estimate_of_means(paired_difference, control + 0.01, control)
    assert (difference.value, difference.low, difference.high) == pytest.approx((0.01, 0.01, 0.01))
    several = np.random.default_rng(2).normal(0.5, 0.2, (3, 6, 5))
    copied = Resamples(6, 5).estimate_of_means(paired_difference, several + 0.01, several)
    assert (copied.low, copied.high) == pytest.approx((0.01, 0.01))


@pytest.mark.parametrize("new_instances", [False, True])
def test_counting_draws_gives_the_means_of_the_draws(new_instances: bool) -> None:
    scores = np.random.default_rng(6).normal(size=(3, 5, 4))
    resamples = Resamples(5, 4, draws=50, new_instances=new_instances)
    assert resamples.means(scores) == pytest.approx(mean(resamples.of(scores)))


def test_the_variance_of_drawn_means_is_that_of_the_mean() -> None:
    scores = np.random.default_rng(3).normal(size=(1, 4, 3))
    drawn = Resamples(4, 3, draws=40_000).means(scores)
    expected = scores.var(axis=2, ddof=1).mean() / 3 / 4
    assert drawn.var() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("members", [1, 5])
def test_intervals_hold_the_truth_as_often_as_they_say(members: int) -> None:
    rng, held, trials = np.random.default_rng(4), 0, 300
    for trial in range(trials):
        hosts = rng.normal(0.5, 0.1, (1, 6, 8)) + rng.normal(0.0, 0.3, (1, 6, 1))
        trained = rng.normal(0.0, 0.01 * (members > 1), (members, 1, 1))
        scores = hosts + rng.normal(0.0, 0.05, (members, 6, 8)) + trained
        estimate = Resamples(6, 8, draws=600, seed=trial).estimate_of_means(paired_difference, scores, hosts)
        held += estimate.low <= 0.0 <= estimate.high
    assert 0.88 <= held / trials <= 0.985  # five members are few: a percentile interval is a little short


@pytest.mark.parametrize(
    ("instances", "too_few"), [(1, 5), (2, 3), (3, 2), (4, 2), (5, 1), (6, 1), (1000, 1)]
)
def test_a_few_hosts_make_no_interval(instances: int, too_few: int) -> None:
    for seeds in (too_few, too_few + 1):
        scores = np.random.default_rng(7).normal(size=(1, instances, seeds))
        found = Resamples(instances, seeds).estimate_of_means(lambda mean: mean, scores)
        assert (
            found.bounded
            == enough(instances, seeds)
            == (seeds >= least_seeds(instances))
            == (seeds > too_few)
        )
    assert [enough(count, 99, new_instances=True) for count in (1, 5, 6)] == [False, False, True]


def test_the_fewest_hosts_do_not_take_noise_for_a_difference_as_a_rule() -> None:
    """Of two hosts every other interval excludes 0 where there is no difference; of the fewest one in seven."""
    for instances in (1, 2, 5):
        rng, wrong, trials = np.random.default_rng(8), 0, 300
        shape = (1, instances, least_seeds(instances))
        for trial in range(trials):
            resamples = Resamples(*shape[1:], draws=400, seed=trial)
            wrong += resamples.estimate_of_means(lambda mean: mean, rng.normal(size=shape)).sign != 0
        assert wrong / trials < 0.2


def test_p_values() -> None:
    """Of the draws of all batches together: nine of each difference here."""
    tails = TwoSidedP()
    tails.add(np.array([[1.0] * 5, [0.0] * 5, [-1.0, 1.0, 1.0, 1.0, 1.0], [np.nan] * 5]))
    tails.add(np.array([[1.0] * 4, [0.0] * 4, [-1.0, 1.0, 1.0, 1.0], [np.nan] * 4]))
    *known, unknown = tails.values()
    assert known == pytest.approx([2 / 10, 1.0, 2 * 3 / 10])
    assert np.isnan(unknown)


def test_draws_without_an_answer_do_not_count() -> None:
    assert interval(1.0, np.array([1.0, np.nan, 1.0])) == Estimate(1.0, 1.0, 1.0)
    assert np.isnan(interval(1.0, np.array([np.nan])).low)


def test_signs() -> None:
    assert [Estimate(0.0, low, high).sign for low, high in ((0.1, 0.2), (-0.1, 0.1), (-0.2, -0.1))] == [
        1,
        0,
        -1,
    ]
    assert str(Estimate(0.5, -0.25, 1.0)) == "+0.5000 [-0.2500, +1.0000]"


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores have shape \(1, 2, 3\); expected \(member, 3, 2\)"):
        Resamples(3, 2).of(np.zeros((1, 2, 3)))
    with pytest.raises(ValueError, match="at least one instance and one seed, not 0 and 3"):
        Resamples(0, 3)
