"""What the callbacks of all trainers share."""

import torch
from torch import nn
from torch.optim import AdamW

import esper
from esper.integrations.callback import host_part
from esper.leyline import Stage
from tiny import grow_until


def test_the_hosts_part_of_an_optimiser_has_all_of_its_groups() -> None:
    """Also one that just a fossil is in: what has not grown yet is to take it."""
    host = nn.Sequential(nn.Sequential(nn.Linear(5, 7), nn.Tanh()), nn.Sequential(nn.Linear(7, 7), nn.Tanh()))
    host[0].requires_grad_(False)
    model = esper.wrap(host, ["0", "1"], torch.ones(2, 5))
    groups: list[dict[str, object]] = [{"params": [], "lr": 0.5}, {"params": list(host[1].parameters())}]
    optimizer = AdamW(groups)
    model.attach(optimizer)
    grow_until(model, "0", Stage.FOSSILIZED, "mlp")
    grow_until(model, "1", Stage.TRAINING, "mlp")
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    part = host_part(model, optimizer, optimizer.state_dict())
    assert [group["params"] for group in part["param_groups"]] == [[], [0, 1]]
    assert set(part["state"]) == {0, 1}
