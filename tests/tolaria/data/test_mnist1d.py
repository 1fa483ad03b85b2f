"""The generator of MNIST-1D against the published one, and the properties of what it makes."""

import importlib.util
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from esper.tolaria.data import mnist1d
from esper.tolaria.data.mnist1d import Draws, Floats

LABELS = np.arange(30) % 10


def replayed(seeds: int) -> Draws:
    """The randomness the published code uses for one sample after `numpy.random.seed(seed)`, for each seed."""
    rows = []
    for seed in range(seeds):
        rng = np.random.RandomState(seed)
        pad = 36 + int(rng.rand() * 25)
        rows.append((pad, rng.rand(), rng.choice(48), rng.randn(72), rng.randn(72), rng.rand()))
    return Draws(*(np.array(column) for column in zip(*rows, strict=True)))


def published() -> ModuleType:
    """Its module of transformations alone: the package itself imports what this needs not."""
    package = importlib.util.find_spec("mnist1d")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the package mnist1d is not installed")
    file = f"{package.submodule_search_locations[0]}/transform.py"
    spec = importlib.util.spec_from_file_location("published_transform", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_transformation_is_the_published_one() -> None:
    module = published()
    settings = SimpleNamespace(
        template_len=12,
        padding=[36, 60],
        scale_coeff=0.4,
        max_translation=48,
        corr_noise_scale=0.25,
        iid_noise_scale=0.02,
        shear_scale=0.75,
        final_seq_length=40,
    )
    ours = mnist1d.transform(np.arange(300) % 10, replayed(300))
    for seed in range(300):
        np.random.seed(seed)  # noqa: NPY002
        theirs, _ = module.transform(mnist1d.templates()[seed % 10], np.zeros(12), settings)
        np.testing.assert_allclose(ours[seed], theirs, atol=5e-8)  # theirs adds 1e-8 to tell zeros apart


def test_known_samples_of_the_published_code() -> None:
    """Seeds 3 (a three) and 17 (a seven), every fourth position."""
    made = mnist1d.transform(LABELS, replayed(30))
    three = [
        -0.057379,
        -0.133438,
        -0.073812,
        -0.078161,
        -0.164456,
        -0.094639,
        -0.038811,
        0.08335,
        0.153976,
        0.076158,
    ]
    seven = [
        0.15534,
        0.085029,
        -0.053135,
        0.076092,
        0.13879,
        -0.007121,
        -0.126699,
        0.124433,
        -0.05654,
        -0.024619,
    ]
    np.testing.assert_allclose(made[3, ::4], three, atol=1e-6)
    np.testing.assert_allclose(made[17, ::4], seven, atol=1e-6)


def test_a_template_comes_through_untouched_without_randomness() -> None:
    """No noise, no shear, no scaling, the longest padding: the canvas is the template and zeros."""
    nothing: Floats = np.zeros((10, 72))
    halves = np.full(10, 0.5)
    draws = Draws(np.full(10, 60), halves, np.zeros(10, np.int64), nothing, nothing, halves)
    made = mnist1d.transform(np.arange(10), draws)
    padded = np.concatenate([mnist1d.templates(), np.zeros((10, 60))], 1)
    places = np.linspace(0, 71, 40)
    expected = np.array([np.interp(places, np.arange(72), row) for row in padded])
    np.testing.assert_allclose(made, expected, atol=1e-12)


def test_templates_start_and_end_at_zero_with_one_deviation() -> None:
    shapes = mnist1d.templates()
    assert shapes.shape == (10, 12)
    np.testing.assert_allclose(shapes[:, [0, -1]], 0, atol=1e-12)
    np.testing.assert_allclose(shapes.std(1), 1 / 6, atol=1e-9)


def test_draws_stay_in_the_published_ranges_and_reach_their_ends() -> None:
    draws = mnist1d.draw(np.random.default_rng(0), 5000)
    assert set(draws.pad) == set(range(36, 61))
    assert set(draws.shift) == set(range(48))


def test_the_pool_is_standardised_and_balanced() -> None:
    series, labels = mnist1d.pool(11, 10)
    train = series[: mnist1d.TRAIN_POOL].astype(np.float64)
    assert series.shape == (7000, 40)
    assert series.dtype == np.float32
    assert abs(train.mean()) < 1e-6
    assert train.std() == pytest.approx(1, abs=1e-6)
    assert set(np.bincount(labels[:4000])) == {400}
    assert len(np.unique(series, axis=0)) == 7000
    assert mnist1d.pool(11, 10) is mnist1d.pool(11, 10)
    assert not np.array_equal(mnist1d.pool(12, 10).series, series)


@pytest.mark.parametrize(("shuffled", "moved"), [(0.0, 0), (0.05, 2), (0.5, 20), (0.975, 39), (1.0, 40)])
def test_exactly_the_asked_share_of_positions_moves(shuffled: float, moved: int) -> None:
    source = mnist1d.reordering(shuffled, permutation=3)
    assert sorted(source) == list(range(40))
    assert (source != np.arange(40)).sum() == moved


def test_permutations_differ_by_seed() -> None:
    assert not np.array_equal(mnist1d.reordering(1.0, 1), mnist1d.reordering(1.0, 2))


@pytest.mark.parametrize(
    ("noise", "classes", "wrong"), [(0.0, 10, 0), (0.2, 10, 100), (0.4, 2, 200), (0.33, 7, 165)]
)
def test_exactly_the_asked_share_of_labels_is_wrong(noise: float, classes: int, wrong: int) -> None:
    true = np.arange(500) % classes
    noisy = mnist1d.mislabel(true, noise, classes, data=0)
    assert (noisy != true).sum() == wrong
    assert noisy.min() >= 0
    assert noisy.max() < classes
    assert np.array_equal(true, np.arange(500) % classes)


def test_wrong_labels_are_spread_over_all_other_classes() -> None:
    true = np.zeros(4000, np.int64)
    noisy = mnist1d.mislabel(true, 0.4, 10, data=0)
    counts = np.bincount(noisy, minlength=10)[1:]
    assert counts.sum() == 1600
    assert counts.min() > 1600 / 9 * 0.75
