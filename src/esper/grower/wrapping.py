"""The model that a grower grows: wrapped here as its options say, or wrapped already."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from torch import nn

from esper.kasmina import GrowingModel, GrowthRules, WrapError, wrap
from esper.kasmina.probing import ExampleInput
from esper.leyline import EventSink, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapping:
    """What `esper.wrap` is asked for; a default is what nobody has asked for."""

    slots: Sequence[str] | None = None
    example_input: ExampleInput | None = None
    layout: Layout | str | Mapping[str, Layout | str] | None = None
    causal: bool = False
    blueprints: Sequence[str] | None = None
    rules: GrowthRules | None = None
    events: EventSink | None = None
    isolation_penalty: float = 1.0

    def growing(self, model: nn.Module, *, accumulate: int, seed: int) -> GrowingModel:
        """The model, ready to grow. One that is a GrowingModel is taken as it is, and options are refused."""
        if isinstance(model, GrowingModel):
            self._refuse()
            return model
        if self.slots is None or self.example_input is None:
            raise WrapError(
                "slots and example_input are missing: where may the model grow, and what goes through it?"
            )
        return wrap(
            model,
            self.slots,
            self.example_input,
            layout=self.layout,
            causal=self.causal,
            blueprints=self.blueprints,
            rules=self.rules,
            isolation_penalty=self.isolation_penalty / accumulate,
            seed=seed,
            events=self.events,
        )

    def _refuse(self) -> None:
        """Somebody else has wrapped the model: options of wrapping would change nothing in it."""
        asked = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        # Only numbers are compared by value: a tensor would answer with a tensor.
        given = [
            name
            for name, (value, usual) in asked.items()
            if not (value == usual if isinstance(value, int | float) else value is usual)
        ]
        if given:
            raise WrapError(
                f"the model is a GrowingModel and was wrapped already: leave out {', '.join(given)}, or give them to "
                "esper.wrap"
            )
