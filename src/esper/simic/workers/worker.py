"""A worker process: owns some hosts of a world and answers requests about them until it is told to stop."""

import signal
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from typing import cast

import torch

from esper.leyline import Beginning, HostLog, HostsLost, World
from esper.simic.workers.messages import (
    Plain,
    action_from_plain,
    event_to_plain,
    facts_to_plain,
    legal_to_plain,
    pack,
    snapshot_to_plain,
    state_from_plain,
    state_to_plain,
    unpack,
    view_to_plain,
)


def serve(
    connection: Connection, factory: str, num_hosts: int, options: dict[str, Plain], tells: bool
) -> None:
    """The life of a worker. `factory` is "module:callable", called with num_hosts and the options.

    tells  its world is handed `events` besides, and what happens to hosts goes out with the next answer
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    log = HostLog()
    told = {"events": log.sink} if tells else {}
    world = cast("Callable[..., World]", load_named(factory))(num_hosts, **options, **told)
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
        events: list[Plain] = [[host_idx, event_to_plain(event)] for host_idx, event in log.take()]
        connection.send_bytes(pack([*answer, events]))


def load_named(path: str) -> Callable[..., object]:
    module, _, name = path.partition(":")
    if not name:
        raise ValueError(f"{path!r} names nothing to call; expected module:callable")
    return cast("Callable[..., object]", getattr(import_module(module), name))


def answer_to(world: World, verb: str, arguments: list[Plain]) -> Plain:
    """Do what is asked; what it changed is in the answer."""
    if verb == "call":
        return cast(Plain, load_named(cast(str, arguments[0]))(*cast("list[Plain]", arguments[1])))
    if verb == "begin":
        beginnings = [Beginning(*cast("tuple[int, str, int]", each)) for each in _list(arguments[0])]
        world.begin_many(beginnings)
        return [_changed(world, beginning.host_idx, new=True) for beginning in beginnings]
    if verb == "load":
        return [_load(world, *_list(each)) for each in _list(arguments[0])]
    if verb == "epoch":
        return _epoch(world, _places(arguments[0]))
    if verb == "settle":
        host_idxs = _places(arguments[0])
        world.settle_many(host_idxs, cast(float, arguments[1]), committed_only=cast(bool, arguments[2]))
        return [_changed(world, host_idx) for host_idx in host_idxs]
    host_idx = cast(int, arguments[0])
    if verb == "apply":
        world.apply(host_idx, action_from_plain(arguments[1]))
        return [_changed(world, host_idx)]
    if verb == "save":
        return state_to_plain(world.state_dict(host_idx))
    if verb == "snapshots":
        return [snapshot_to_plain(slot) for slot in world.host(host_idx).snapshots()]
    if verb == "legal":
        legal = world.host(host_idx).legal_operations()
        return {slot: legal_to_plain(operations) for slot, operations in legal.items()}
    raise ValueError(f"unknown verb {verb!r}")


def _epoch(world: World, host_idxs: list[int]) -> Plain:
    lost: tuple[int, ...] = ()
    reason = ""
    try:
        world.epoch(host_idxs)
    except HostsLost as loss:  # given up by the governor; all others had their epoch
        lost, reason = loss.host_idxs, loss.reason
    return [_changed(world, host_idx, lost=reason if host_idx in lost else None) for host_idx in host_idxs]


def _changed(world: World, host_idx: int, *, new: bool = False, lost: str | None = None) -> Plain:
    """[place, what it is now, what it is for good where it is new, why it was lost]."""
    host = world.host(host_idx)
    return [host_idx, view_to_plain(host), facts_to_plain(host) if new else None, lost]


def _load(world: World, host_idx: Plain, state: Plain) -> Plain:
    world.load_state_dict(cast(int, host_idx), state_from_plain(state))
    return _changed(world, cast(int, host_idx), new=True)


def _places(rows: Plain) -> list[int]:
    return [cast(int, place) for (place,) in map(_list, _list(rows))]


def _list(plain: Plain) -> list[Plain]:
    return cast("list[Plain]", plain)
