"""The blueprint that makes the slot's own submodule wider: a fresh parallel copy of it."""

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from esper.kasmina.blueprints.parts import ChannelNorm
from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.blueprints.site import Site
from esper.leyline import BlueprintKind, Layout


def bare_copy(module: nn.Module, device: torch.device) -> nn.Module:
    """A deep copy on `device`, without hooks; on "meta", of the structure alone."""
    memo: dict[int, object] = {}
    for part in module.modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks):
            memo[id(hooks)] = type(hooks)()
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to(device, copy=True))
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.detach().to(device, copy=True)
    return copy.deepcopy(module, memo)


@blueprint(
    "widen",
    layouts=tuple(Layout),
    kind=BlueprintKind.COPY,
    causal=True,
    fits=lambda site: site.copyable,
    reads_input=True,
)
def widen(site: Site) -> nn.Module:
    """The copy's weights are drawn anew; batch norm becomes channel norm and dropout goes.

    Parameters that no `reset_parameters` covers keep the values they had in the host.
    """
    assert site.module is not None
    here = torch.empty(()).device  # weights are drawn where seeds are built, never on the host's device
    twin = _without_batch_statistics(bare_copy(site.module, here))
    if here.type != "meta":
        for part in twin.modules():
            for reset in ("reset_parameters", "_reset_parameters"):  # torch.nn uses both names
                if hasattr(part, reset):
                    getattr(part, reset)()
    return twin


def _without_batch_statistics(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return ChannelNorm(channel_axis=1)
    if isinstance(module, _DropoutNd):
        return nn.Identity()
    for name, child in list(module.named_children()):
        setattr(module, name, _without_batch_statistics(child))
    return module
