"""Executing a decision in words on a growing model."""

from esper.kasmina.model import GrowingModel
from esper.leyline import ActionSpec, LifecycleOp


def execute(model: GrowingModel, action: ActionSpec) -> None:
    """Do one operation; an illegal one is refused by the model."""
    slot, op = action.slot, LifecycleOp(action.op)
    if op is LifecycleOp.WAIT:
        return
    if slot is None:
        raise ValueError(f"{op.name} needs a slot; the slots are {', '.join(model.slots)}")
    model.slot_config.index(slot)  # names the slots where there is no such one
    if op is LifecycleOp.GERMINATE:
        if action.blueprint is None:
            raise ValueError(
                f"GERMINATE needs a blueprint; offered: {', '.join(model.slots[slot].blueprints)}"
            )
        model.germinate(
            slot, action.blueprint, style=action.style, tempo=action.tempo, alpha_target=action.alpha_target
        )
    elif op is LifecycleOp.ADVANCE:
        model.advance(slot)
    elif op is LifecycleOp.SET_ALPHA_TARGET:
        model.set_alpha_target(
            slot,
            action.alpha_target,
            style=action.style,
            alpha_speed=action.alpha_speed,
            alpha_curve=action.alpha_curve,
        )
    elif op is LifecycleOp.PRUNE:
        model.prune(slot, alpha_speed=action.alpha_speed, alpha_curve=action.alpha_curve)
    else:
        model.fossilize(slot)
