"""What a run is built of."""

import warnings

import pytest

from esper.simic.building import build
from esper.simic.config.training_config import TrainingConfig


def test_a_preset_does_not_warn_of_its_own_settings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(TrainingConfig.preset("toy", num_envs=2, num_minibatches=1))
        with pytest.warns(RuntimeWarning, match="n_epochs 3 with memory is elevated"):
            build(TrainingConfig.preset("toy", num_envs=2, num_minibatches=1, n_epochs=3))
