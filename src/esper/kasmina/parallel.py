"""How a model is trained: in this process alone, or in several, as its wrapper shows."""

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from esper.kasmina.axes import WrapError
from esper.kasmina.replicas import ALONE, CopiedReplicas, Replicas, ShardedReplicas
from esper.kasmina.sharding import is_sharded, sharded_modules

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def recognise(model: nn.Module) -> tuple[nn.Module, Replicas]:
    """The user's own module, and the processes that train it; what cannot grow is refused by name."""
    _refuse(model)
    if isinstance(model, DistributedDataParallel):
        return model.module, CopiedReplicas(model)
    return model, ShardedReplicas(model, _mesh_of(model)) if sharded_modules(model) else ALONE


def _refuse(model: nn.Module) -> None:
    if isinstance(model, DataParallel):
        raise WrapError(
            "the model is a DataParallel, which copies the network anew for every batch, so that what a seed notes "
            "in a forward is lost: use DistributedDataParallel with one process for each device"
        )
    if _of_package(model, "deepspeed"):
        raise WrapError(
            f"the model is DeepSpeed's {type(model).__name__}, which lays all parameters and their optimiser state "
            "out in flat partitions once: seeds could not join them. Use DistributedDataParallel or fully_shard"
        )
    for name, part in model.named_modules():
        if type(part).__name__ == "FullyShardedDataParallel":
            where = f"{name} is" if name else "the model is"
            raise WrapError(
                f"{where} a FullyShardedDataParallel (FSDP1), which flattens parameters once when it is made: seeds "
                "could not join them. Use FSDP2, torch.distributed.fsdp.fully_shard"
            )


def _of_package(model: nn.Module, package: str) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(model).__mro__)


def _mesh_of(host: nn.Module) -> "DeviceMesh":
    """The mesh that all of a host is sharded over: shards, or replicas of shards."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import Replicate, Shard

    if not isinstance(host, FSDPModule):
        raise WrapError(
            "parts of the model are sharded by fully_shard, and the model itself is not: apply fully_shard to it "
            "too, last, so that all its gradients are reduced"
        )
    for part in sharded_modules(host):
        part.reshard()
    sharded = {name: parameter for name, parameter in host.named_parameters() if is_sharded(parameter)}
    if not sharded:
        raise WrapError("fully_shard was applied to the model, and none of its parameters are sharded")
    first = next(iter(sharded))
    mesh = sharded[first].device_mesh
    for name, parameter in sharded.items():
        if parameter.device_mesh != mesh:
            raise WrapError(f"{name} is sharded over another mesh than {first}: growing expects one for all")
        *outer, inner = parameter.placements
        if not isinstance(inner, Shard) or outer not in ([], [Replicate()]):
            raise WrapError(
                f"{name} is placed as {parameter.placements}: growing expects what fully_shard does alone, without "
                "tensor parallelism"
            )
    if mesh.ndim > 1 and mesh.size() != dist.get_world_size():
        raise WrapError(
            f"the mesh has {mesh.size()} of {dist.get_world_size()} processes: growing expects replicas of shards "
            "over all of them"
        )
    return mesh
