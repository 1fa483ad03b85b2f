"""The study of intervals finds what the documentation says of them."""

import study_intervals as study


def test_intervals_over_two_training_seeds_that_differ_are_too_short() -> None:
    found, _ = study.study(study.NOISES["training seeds differ"], 2, 200, new_instances=False)
    assert 0.2 < found < 0.4


def test_noise_of_episodes_alone_is_drawn_at_every_level() -> None:
    _, once = study.study(study.NOISES["episodes alone differ"], 1, 200, new_instances=False)
    found, twice = study.study(study.NOISES["episodes alone differ"], 5, 200, new_instances=False)
    assert 0.8 < once < 1.25
    assert twice > 2.0
    assert found < 0.02
