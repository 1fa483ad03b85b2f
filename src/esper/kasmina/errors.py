"""What can be refused, and why."""

from esper.leyline import LifecycleOp, Stage


class WrapError(ValueError):
    """The model, a slot name or the example cannot be wrapped as asked."""


class BlueprintError(ValueError):
    """A blueprint is unknown, does not serve the slot, or is badly made."""


class IllegalOperation(ValueError):
    """An operation that the slot's stage does not allow now."""

    def __init__(
        self, slot: str, stage: Stage, operation: LifecycleOp, reason: str, legal: frozenset[LifecycleOp]
    ) -> None:
        self.slot, self.stage, self.operation, self.legal = slot, stage, operation, legal
        names = ", ".join(op.name for op in sorted(legal))
        super().__init__(
            f"{operation.name} is not legal at slot {slot!r} in stage {stage.name}: {reason}. Legal now: {names}"
        )
