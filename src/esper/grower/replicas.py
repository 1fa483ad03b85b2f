"""What the processes of one run settle between them: that they were made alike, and that rank 0 decides."""

from collections.abc import Sized

import torch.distributed as dist
from torch import nn

from esper.kasmina import ReplicaError, WrapError
from esper.kasmina.replicas import Replicas
from esper.leyline import ActionSpec, HostProtocol
from esper.tamiyo.deciders import Choice, Decider
from esper.tamiyo.observation import Observer


def refuse_strangers(model: nn.Module, replicas: Replicas) -> None:
    """Of several processes, each with a plain model: nobody would keep them equal."""
    if replicas.size == 1 and dist.is_available() and dist.is_initialized():
        processes = dist.get_world_size()
        if processes > 1:
            raise WrapError(
                f"torch.distributed runs {processes} processes, and the model is a plain "
                f"{type(model).__name__}: give the Grower DistributedDataParallel(model), or apply "
                "torch.distributed.fsdp.fully_shard first"
            )


def require_as_many(replicas: Replicas, validate: object) -> None:
    """Each process must validate, and where a forward needs all processes, with as many batches."""
    batches = len(validate) if replicas.in_step and isinstance(validate, Sized) else None
    shown = None if validate is None else "given" if batches is None else f"{batches} batches"
    require_alike(replicas, validate=shown)


def require_alike(replicas: Replicas, **given: object) -> None:
    """Raise unless all processes were given the same; without effect in one process."""
    for rank, theirs in enumerate(replicas.gather(given)):
        for name, value in given.items():
            if theirs[name] != value:
                raise ReplicaError(
                    f"{name} is {value} in process {replicas.rank} and {theirs[name]} in process {rank}: make "
                    "the Grower with the same in all of them"
                )


def ask(
    replicas: Replicas, decider: Decider, observer: Observer, host: HostProtocol, *, reward: float
) -> Choice:
    """What the decider says. Of several processes rank 0 asks it, and all remember the same."""
    if replicas.size == 1:
        return decider.decide(observer, host, reward=reward)
    said: tuple[Choice, dict[str, object] | None] = (Choice(ActionSpec()), None)
    if replicas.rank == 0:
        choice = decider.decide(observer, host, reward=reward)
        said = (choice, decider.state_dict() if decider.savable else None)
    choice, memory = replicas.agree(said)
    if replicas.rank > 0 and memory is not None:
        decider.load_state_dict(memory)
    return choice
