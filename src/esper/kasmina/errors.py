"""What can be refused, and why."""

from esper.leyline import LifecycleOp, Stage
from esper.leyline.errors import EsperError


class WrapError(EsperError, ValueError):
    """The model, a slot name or the example cannot be wrapped as asked."""


class BlueprintError(EsperError, ValueError):
    """A blueprint is unknown, does not serve the slot, or is badly made."""


class IllegalOperation(EsperError, ValueError):
    """An operation that the slot's stage does not allow now."""

    def __init__(
        self, slot: str, stage: Stage, operation: LifecycleOp, reason: str, legal: frozenset[LifecycleOp]
    ) -> None:
        self.slot, self.stage, self.operation, self.reason, self.legal = slot, stage, operation, reason, legal
        names = ", ".join(op.name for op in sorted(legal))
        super().__init__(
            f"{operation.name} is not legal at slot {slot!r} in stage {stage.name}: {reason}. Legal now: {names}"
        )

    def __reduce__(self) -> tuple[type["IllegalOperation"], tuple[object, ...]]:
        return type(self), (self.slot, self.stage, self.operation, self.reason, self.legal)
