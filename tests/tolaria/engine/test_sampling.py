"""Which samples a host sees."""

import pytest
import torch

from esper.tolaria.engine.host import ShuffledStream, derived_seed


def test_every_sample_is_seen_equally_often_whatever_the_sizes() -> None:
    stream = ShuffledStream(0)
    seen = torch.cat([stream.draw(range(100, 107), steps=3, batch=5).flatten() for _ in range(7)])
    assert torch.bincount(seen - 100).tolist() == [15] * 7


def test_the_order_is_the_seeds_own() -> None:
    first, again, other = (ShuffledStream(seed).draw(range(50), 2, 20) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_order_is_the_one_that_control_curves_were_made_with() -> None:
    """If this has to change, so has `baselines.NUMERICS`."""
    assert ShuffledStream(0).draw(range(7), 1, 7).tolist() == [[3, 0, 1, 6, 5, 4, 2]]


def test_no_sample_repeats_within_one_pass() -> None:
    assert len(ShuffledStream(0).draw(range(60), 4, 15).unique()) == 60


def test_other_data_begin_a_new_pass() -> None:
    stream = ShuffledStream(0)
    stream.draw(range(10), 1, 3)
    assert set(stream.draw(range(10, 14), 1, 4).flatten().tolist()) == {10, 11, 12, 13}


def test_nobody_elses_randomness_moves() -> None:
    before = torch.get_rng_state()
    ShuffledStream(0).draw(range(10), 2, 4)
    assert torch.equal(before, torch.get_rng_state())


def test_a_stream_goes_on_where_it_was() -> None:
    stream, twin = ShuffledStream(0), ShuffledStream(5)
    stream.draw(range(10), 1, 7)
    twin.load_state_dict(stream.state_dict())
    assert torch.equal(stream.draw(range(10), 3, 4), twin.draw(range(10), 3, 4))


def test_nothing_to_train_on_is_an_error() -> None:
    with pytest.raises(ValueError, match="samples is empty"):
        ShuffledStream(0).draw(range(3, 3), 1, 1)


def test_purposes_have_seeds_of_their_own() -> None:
    assert derived_seed(0, "a") != derived_seed(0, "b") != derived_seed(1, "b")
