"""What is said when a device is full."""

import pytest
import torch

from esper.tolaria.engine.population import OutOfDeviceMemory, room_for


def test_a_full_device_is_told_with_the_number_of_hosts_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        total_memory = 8 * 2**30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    with (
        pytest.raises(OutOfDeviceMemory, match=r"64 hosts do not fit on cuda \(8 GiB\).* about 11 would fit"),
        room_for(64, placed=11, device=torch.device("cuda")),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_other_errors_pass_through() -> None:
    with pytest.raises(KeyError), room_for(2, placed=1, device=torch.device("cuda")):
        raise KeyError("something else")
