"""Random and exhaustive lives in the toy, which several tests share."""

import random
from itertools import product

from esper.leyline import ALPHA_SPEEDS, TEMPOS, ActionSpec, HostProtocol, LifecycleOp
from esper.tolaria.worlds.toy.host import ToyWorld
from world_steps import run_epoch


def legal_actions(
    host: HostProtocol, *, tempos: tuple[int, ...] = TEMPOS, speeds: tuple[int, ...] = ALPHA_SPEEDS
) -> list[ActionSpec]:
    """Everything that can be done now, with linear curves."""
    actions = [ActionSpec()]
    for slot, legal in host.legal_operations().items():
        for op in sorted(legal.operations - {LifecycleOp.WAIT}):
            if op is LifecycleOp.GERMINATE:
                actions += [
                    ActionSpec(op, slot, blueprint, style=style, tempo=tempo, alpha_target=target)
                    for blueprint, style, tempo, target in product(
                        legal.blueprints, legal.styles, tempos, legal.alpha_targets
                    )
                ]
            elif op is LifecycleOp.SET_ALPHA_TARGET:
                actions += [
                    ActionSpec(op, slot, style=style, alpha_target=target, alpha_speed=speed)
                    for style, target, speed in product(legal.styles, legal.alpha_targets, speeds)
                ]
            elif op in (LifecycleOp.PRUNE, LifecycleOp.RETIRE):
                actions += [ActionSpec(op, slot, alpha_speed=speed) for speed in speeds]
            else:
                actions.append(ActionSpec(op, slot))
    return actions


def live_randomly(world: ToyWorld, epochs: int, rng: random.Random) -> list[str]:
    """What host 0 reported and read over a random life."""
    seen = []
    for _ in range(epochs):
        host = world.host(0)
        by_op: dict[LifecycleOp, list[ActionSpec]] = {}
        for action in legal_actions(host):
            by_op.setdefault(action.op, []).append(action)
        world.host(0).apply(rng.choice(by_op[rng.choice(sorted(by_op))]))
        run_epoch(world)
        seen.append(f"{host.report} {world.host(0).readings()}")
    return seen
