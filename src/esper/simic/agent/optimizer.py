"""The optimiser: plain Adam, or AdamW whose decay reaches the critic only."""

import torch

from esper.tamiyo import Policy


def build_optimizer(policy: Policy, *, lr: float, eps: float, weight_decay: float) -> torch.optim.Adam:
    """Adam without decay; with it AdamW over groups named actor, shared and critic. Fused on CUDA."""
    on_cuda = policy.device.type == "cuda"
    fused, foreach = (True, None) if on_cuda else (None, True)
    if weight_decay == 0.0:
        return torch.optim.Adam(policy.parameters(), lr=lr, eps=eps, fused=fused, foreach=foreach)
    groups = [
        {"params": parameters, "name": name, "weight_decay": weight_decay if name == "critic" else 0.0}
        for name, parameters in policy.named_groups().items()
    ]
    return torch.optim.AdamW(groups, lr=lr, eps=eps, fused=fused, foreach=foreach)
