"""The blueprint that makes the slot's own submodule wider: a fresh parallel copy of it."""

import copy

import torch
from torch import Tensor, nn
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
        for kept in part.__dict__.values():
            if isinstance(kept, Tensor) and not kept.is_leaf:  # an activation somebody keeps
                memo[id(kept)] = kept.detach()
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
    """The copy's weights are drawn anew; batch norm becomes channel norm, dropout and in-place work go.

    Parameters that no `reset_parameters` covers keep the values they had in the host, unless those are all zero.
    """
    assert site.module is not None
    here = torch.empty(()).device  # weights are drawn where seeds are built, never on the host's device
    twin = _fit_for_a_seed(bare_copy(site.module, here))
    if here.type != "meta":
        for part in twin.modules():
            _draw_anew(part)
    return twin


def _draw_anew(module: nn.Module) -> None:
    """New weights for the parameters a module holds itself."""
    for reset in ("reset_parameters", "_reset_parameters"):  # torch.nn uses both names
        if hasattr(module, reset):
            getattr(module, reset)()
            return
    for parameter in module.parameters(recurse=False):
        # A gate that starts at zero would be a second zero before the seed's scale, and never learn.
        if parameter.is_floating_point() and not parameter.any():
            nn.init.ones_(parameter) if parameter.ndim < 2 else nn.init.xavier_normal_(parameter)


def _fit_for_a_seed(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return ChannelNorm(channel_axis=1)
    if isinstance(module, _DropoutNd):
        return nn.Identity()
    if isinstance(getattr(module, "dropout", None), float):  # recurrent and attention layers keep a number
        setattr(module, "dropout", 0.0)  # noqa: B010
    if isinstance(getattr(module, "inplace", None), bool):
        setattr(module, "inplace", False)  # noqa: B010
    for name, child in list(module.named_children()):
        setattr(module, name, _fit_for_a_seed(child))
    return module
