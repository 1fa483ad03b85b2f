"""A worker process: owns some hosts of a world and answers requests about them until it is told to stop."""

import signal
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from typing import cast

import torch

from esper.leyline import World
from esper.simic.workers.messages import (
    Plain,
    action_from_plain,
    facts_to_plain,
    legal_to_plain,
    pack,
    snapshot_to_plain,
    state_from_plain,
    state_to_plain,
    unpack,
    view_to_plain,
)


def serve(connection: Connection, factory: str, num_hosts: int, options: dict[str, Plain]) -> None:
    """The life of a worker. `factory` is "module:callable", called with num_hosts and the options."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    world = load_factory(factory)(num_hosts, **options)
    while True:
        try:
            request = unpack(connection.recv_bytes())
        except EOFError:  # the parent is gone
            return
        assert isinstance(request, list)
        if request[0] == "stop":
            return
        try:
            answer: list[Plain] = ["done", answer_to(world, str(request[0]), request[1:])]
        except Exception as error:  # told to the parent, which decides
            answer = ["failed", type(error).__name__, str(error)]
        connection.send_bytes(pack(answer))


def load_factory(factory: str) -> Callable[..., World]:
    module, _, name = factory.partition(":")
    if not name:
        raise ValueError(f"factory is {factory!r}; expected module:callable")
    return cast("Callable[..., World]", getattr(import_module(module), name))


def answer_to(world: World, verb: str, arguments: list[Plain]) -> Plain:
    """Do what is asked; what it changed is in the answer."""
    if verb == "epoch":
        host_idxs = cast("list[int]", arguments[0])
        world.epoch(host_idxs)
        return [[host_idx, view_to_plain(world.host(host_idx))] for host_idx in host_idxs]
    host_idx = cast(int, arguments[0])
    if verb == "begin":
        world.begin(host_idx, cast(str, arguments[1]), cast(int, arguments[2]))
        host = world.host(host_idx)
        return [[host_idx, view_to_plain(host), facts_to_plain(host)]]
    if verb == "load":
        world.load_state_dict(host_idx, state_from_plain(arguments[1]))
        host = world.host(host_idx)
        return [[host_idx, view_to_plain(host), facts_to_plain(host)]]
    if verb == "apply":
        world.apply(host_idx, action_from_plain(arguments[1]))
        return [[host_idx, view_to_plain(world.host(host_idx))]]
    if verb == "settle":
        world.settle(host_idx, cast(float, arguments[1]), committed_only=cast(bool, arguments[2]))
        return [[host_idx, view_to_plain(world.host(host_idx))]]
    if verb == "save":
        return state_to_plain(world.state_dict(host_idx))
    if verb == "snapshots":
        return [snapshot_to_plain(slot) for slot in world.host(host_idx).snapshots()]
    if verb == "legal":
        legal = world.host(host_idx).legal_operations()
        return {slot: legal_to_plain(operations) for slot, operations in legal.items()}
    raise ValueError(f"unknown verb {verb!r}")
