"""Data on the device: not copied where they need not be, and the phases of a stream behind one another."""

import torch

from esper.tolaria.engine.host import ResidentData
from esper.tolaria.tasks import Instance

CPU = torch.device("cpu")


def test_data_of_one_phase_are_those_that_were_loaded() -> None:
    instance = Instance.parse("digits")
    train, resident = instance.load().phases[0].train, ResidentData(instance.load(), instance.row, CPU)
    assert resident.inputs.data_ptr() == train.inputs.data_ptr()
    assert resident.targets.data_ptr() == train.targets.data_ptr()


def test_several_phases_are_behind_one_another() -> None:
    instance = Instance.parse("shift")
    data, resident = instance.load(), ResidentData(instance.load(), instance.row, CPU)
    assert len(data.phases) > 1
    for phase, samples in zip(data.phases, resident.ranges, strict=True):
        assert torch.equal(resident.inputs[samples.start : samples.stop], phase.train.inputs)
