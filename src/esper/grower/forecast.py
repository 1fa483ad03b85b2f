"""What growing has brought, as far as a single run can know: utility over a forecast from before a seed took part.

In the environments gain is measured against the same host trained without growth. Nobody trains that in a user's
loop, so here it is a forecast, and is called one.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace

from esper.kasmina import GrowingModel
from esper.leyline import ActionSpec, LifecycleOp, Style
from esper.leyline.utility import utility
from esper.tamiyo.controller import RewardRecord

# What a parameter budget has room for.


def require_room(model: GrowingModel, parameter_budget: int, menu: Collection[str] | None = None) -> None:
    """A budget under the smallest seed would never let anything grow. `menu`: the only kinds that will."""
    offers = [
        (name, card)
        for name, slot in model.slots.items()
        for card in slot.cards
        if menu is None or card.name in menu
    ]
    slot, cheapest = min(offers, key=lambda offer: offer[1].parameters, default=(None, None))
    if cheapest is not None and cheapest.parameters > parameter_budget:
        raise ValueError(
            f"parameter_budget is {parameter_budget:,}, and nothing that is offered is so small: the cheapest is "
            f"{cheapest.name} at {slot} with {cheapest.parameters:,} parameters"
        )


def affordable(model: GrowingModel, action: ActionSpec, parameter_budget: int) -> ActionSpec:
    """A gate costs parameters that the card does not count: without room for it the seed is born without."""
    if action.op is not LifecycleOp.GERMINATE or action.style is not Style.GATE:
        return action
    slot = model.slots[str(action.slot)]
    cost = next(card.parameters for card in slot.cards if card.name == action.blueprint)
    gate = slot.site.channels + 1
    room = parameter_budget - model.added_parameters
    return action if cost + gate <= room else replace(action, style=Style.LINEAR_ADD)


DAMPING = 0.7
"""Of the trend, per epoch: learning curves flatten."""
WINDOW = 4
"""Epochs that the trend is read from."""
LEAST = 3
"""Scores without which there is no trend."""
FALL = 0.05
"""Of the score below its best in the window: the data may have changed."""


@dataclass(slots=True)
class Forecast:
    """The score without growth: as measured while no seed takes part, from then on a damped trend.

    f(b + k) = s_b + m (d + d^2 + ... + d^k), with s_b the last score without a seed and m its rise an epoch: the
    last one or the window's mean, whichever is smaller, and never a fall. After a fall by `FALL` nothing is foreseen:
    the model may recover by itself, and growth must not get the credit. When the last seed is gone the score is
    measured again, and the next forecast begins there; epochs with a seed count as time in the trend, not as scores
    """

    scores: list[tuple[int, float]] = field(default_factory=list)
    """Epoch and score, the last ones that no seed took part in."""
    epoch: int = 0
    epochs_since: int = 0
    """Epochs that seeds have taken part in without a break."""

    def advance(self, score: float | None, *, grown: bool) -> float | None:
        """One epoch on, `grown` if a seed took part in it; None where nothing can be foreseen."""
        self.epoch += 1
        self.epochs_since = self.epochs_since + 1 if grown else 0
        if not grown and score is not None:
            self.scores = [*self.scores, (self.epoch, score)][-WINDOW:]
        return self.now

    @property
    def now(self) -> float | None:
        if not self.epochs_since:
            return self.scores[-1][1] if self.scores else None
        if len(self.scores) < LEAST:
            return None
        first, before, (_, last) = self.scores[0], self.scores[-2], self.scores[-1]
        best = max(score for _, score in self.scores)
        if best - last > FALL:
            return None
        trend = max(min(self._rise(first), self._rise(before)), 0.0)
        reach = sum(DAMPING**k for k in range(1, self.epochs_since + 1))
        # Accuracy ends at 1; a score without it is minus a loss, and ends at 0.
        ceiling = 0.0 if best <= 0.0 else 1.0
        return min(last + trend * reach, max(ceiling, last))

    def _rise(self, since: tuple[int, float]) -> float:
        """An epoch, up to the last score."""
        epoch, score = self.scores[-1]
        return (score - since[1]) / (epoch - since[0])


@dataclass(slots=True)
class Paymaster:
    """The reward of an epoch as a controller was paid it in training, with the forecast for a control."""

    rent: float
    reward: RewardRecord | None
    """Of the controller; None for rules, which see no reward."""
    forecast: Forecast = field(default_factory=Forecast)
    _potential: float | None = None

    def pay(self, score: float | None, added: int, host: int, *, grown: bool) -> float:
        """gamma phi(s') - phi(s); 0 where either is unknown."""
        control = self.forecast.advance(score, grown=grown)
        if self.reward is None or self.reward.mode == "sparse" or score is None:
            return 0.0
        worth = utility(score, self.reward.rent, added, host)
        if self.reward.control_variate:
            worth -= score if control is None else control
        before, self._potential = self._potential, worth
        return 0.0 if before is None else self.reward.gamma * worth - before

    def gain(self, score: float | None, added: int, host: int) -> float | None:
        """Utility now over the forecast, at this loop's own rent; None while it is unknown."""
        if score is None or self.forecast.now is None:
            return None
        return utility(score, self.rent, added, host) - self.forecast.now

    def state_dict(self) -> dict[str, object]:
        return {"forecast": asdict(self.forecast), "potential": self._potential}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        forecast, potential = state["forecast"], state["potential"]
        if not isinstance(forecast, dict) or not (potential is None or isinstance(potential, float)):
            raise TypeError(f"forecast is {forecast!r}, potential {potential!r}; expected state_dict's")
        self.forecast, self._potential = Forecast(**forecast), potential
