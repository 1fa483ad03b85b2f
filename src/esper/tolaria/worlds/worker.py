"""A worker process: owns some hosts of a world and answers requests about them until it is told to stop."""

import base64
import io
import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from importlib import import_module
from multiprocessing.connection import Connection
from typing import TypeAlias, cast, get_args

import torch

from esper.leyline import (
    ActionSpec,
    Beginning,
    BlueprintCard,
    BlueprintKind,
    Curve,
    EpochReport,
    HostEvent,
    HostLog,
    HostProtocol,
    HostsLost,
    Layout,
    LegalOperations,
    LifecycleOp,
    SlotConfig,
    SlotReading,
    SlotSnapshot,
    Stage,
    Style,
    World,
)

# What travels between a world and its workers: JSON, so plain data by construction, on whatever machine.
#
# A request is [verb, ...arguments]; its answer is ["done", result, events], or ["failed", error type, text, events].
# Requests are answered in order. Python's JSON keeps every float exactly, NaN included.


Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"


def pack(message: Plain) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def unpack(data: bytes) -> Plain:
    message: Plain = json.loads(data)
    return message


@dataclass(slots=True)
class HostFacts:
    """What a host is from its beginning to its end."""

    slot_config: SlotConfig
    cards: Mapping[str, tuple[BlueprintCard, ...]]
    host_parameters: int


@dataclass(slots=True)
class HostView:
    """What a host is after an epoch."""

    added_parameters: int
    training_samples: int
    report: EpochReport
    readings: list[SlotReading]


def facts_to_plain(host: HostProtocol) -> Plain:
    cards: list[Plain] = [
        [slot, [[card.name, str(card.kind), card.parameters] for card in host.cards[slot]]]
        for slot in host.slot_config.slot_ids
    ]
    return [cards, host.host_parameters]


def facts_from_plain(plain: Plain) -> HostFacts:
    slots, host_parameters = _items(plain)
    cards = {}
    for item in _items(slots):
        slot, offered = _items(item)
        cards[_str(slot)] = tuple(
            BlueprintCard(_str(name), BlueprintKind(_str(kind)), _int(parameters))
            for name, kind, parameters in map(_items, _items(offered))
        )
    return HostFacts(SlotConfig(tuple(cards)), cards, _int(host_parameters))


def view_to_plain(host: HostProtocol) -> Plain:
    r = host.report
    report: list[Plain] = [
        *(r.epoch, r.train_loss, r.train_accuracy, r.validation_loss, r.validation_accuracy),
        *(r.gradient_norm, r.rolled_back),
    ]
    readings: list[Plain] = [list(reading) for reading in host.readings()]
    return [host.added_parameters, host.training_samples, report, readings]


def view_from_plain(plain: Plain) -> HostView:
    added, samples, report, readings = _items(plain)
    return HostView(
        _int(added),
        _int(samples),
        EpochReport(*_items(report)),  # type: ignore[arg-type]
        [SlotReading(*_items(reading)) for reading in _items(readings)],  # type: ignore[arg-type]
    )


def action_to_plain(action: ActionSpec) -> Plain:
    return [
        *(int(action.op), action.slot, action.blueprint, str(action.style), action.tempo),
        *(action.alpha_target, action.alpha_speed, str(action.alpha_curve)),
    ]


def action_from_plain(plain: Plain) -> ActionSpec:
    op, slot, blueprint, style, tempo, target, speed, curve = _items(plain)
    return ActionSpec(
        LifecycleOp(_int(op)),
        slot,  # type: ignore[arg-type]
        blueprint,  # type: ignore[arg-type]
        Style(_str(style)),
        _int(tempo),
        target,  # type: ignore[arg-type]
        _int(speed),
        Curve(_str(curve)),
    )


def snapshot_to_plain(slot: SlotSnapshot) -> Plain:
    fields: dict[str, Plain] = {name: getattr(slot, name) for name in SlotSnapshot.__slots__}
    return {**fields, "stage": int(slot.stage)}  # string enums are strings


def snapshot_from_plain(plain: Plain) -> SlotSnapshot:
    assert isinstance(plain, dict)
    style = plain["style"]
    typed = {
        "layout": Layout(_str(plain["layout"])),
        "stage": Stage(_int(plain["stage"])),
        "style": None if style is None else Style(_str(style)),
    }
    return SlotSnapshot(**{**plain, **typed})  # type: ignore[arg-type]


def legal_to_plain(legal: LegalOperations) -> Plain:
    operations: list[Plain] = [int(op) for op in sorted(legal.operations)]
    return [
        operations,
        list(legal.blueprints),
        [str(style) for style in legal.styles],
        list(legal.alpha_targets),
    ]


def legal_from_plain(plain: Plain) -> LegalOperations:
    operations, blueprints, styles, targets = map(_items, _items(plain))
    return LegalOperations(
        frozenset(LifecycleOp(_int(op)) for op in operations),
        tuple(map(_str, blueprints)),
        tuple(Style(_str(style)) for style in styles),
        tuple(targets),  # type: ignore[arg-type]
    )


_HOST_EVENTS: Mapping[str, type[HostEvent]] = {event.kind: event for event in get_args(HostEvent)}
_NAMED: Mapping[str, type[Enum]] = {
    "style": Style,
    "stage": Stage,
    "before": Stage,
    "after": Stage,
    "operation": LifecycleOp,
}
"""Fields of host events that hold a member of an enumeration, or None."""


def event_to_plain(event: HostEvent) -> Plain:
    values: list[Plain] = [getattr(event, field.name) for field in fields(event)]
    return [
        event.kind,
        *values,
    ]  # JSON writes the members of our enumerations as the numbers and texts they are


def event_from_plain(plain: Plain) -> HostEvent:
    kind, *values = _items(plain)
    event = _HOST_EVENTS[_str(kind)]
    named = {field.name: value for field, value in zip(fields(event), values, strict=True)}
    members = {
        name: _NAMED[name](value) for name, value in named.items() if name in _NAMED and value is not None
    }
    return event(**{**named, **members})  # type: ignore[arg-type]


def state_to_plain(state: Mapping[str, object]) -> Plain:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def state_from_plain(plain: Plain) -> dict[str, object]:
    data = io.BytesIO(base64.b64decode(str(plain)))
    state: dict[str, object] = torch.load(data, weights_only=True)
    return state


def _items(plain: Plain) -> list[Plain]:
    if not isinstance(plain, list):
        raise TypeError(f"a message has {plain!r} where a list was expected")
    return plain


def _int(plain: Plain) -> int:
    if not isinstance(plain, int):
        raise TypeError(f"a message has {plain!r} where an integer was expected")
    return plain


def _str(plain: Plain) -> str:
    if not isinstance(plain, str):
        raise TypeError(f"a message has {plain!r} where a string was expected")
    return plain


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
