"""The running statistics of normalising layers (BatchNorm, InstanceNorm)."""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from esper.kasmina.tree import bare_modules


def norm_statistics(host: nn.Module) -> dict[str, Tensor]:
    """Name in the host -> each running mean, running variance and count of batches: the live buffers."""
    names = {id(module): name for name, module in host.named_modules()}
    return {
        f"{names[id(part)]}.{name}".lstrip("."): buffer
        for part in bare_modules(host)
        if isinstance(part, _NormBase)
        for name, buffer in part.named_buffers(recurse=False)
    }
