"""What growing has brought, as far as a single run can know: utility over a forecast from before the first birth.

In the environments gain is measured against the same host trained without growth. Nobody trains that in a user's
loop, so here it is a forecast, and is called one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from esper.tamiyo.controller_card import RewardRecord
from esper.tolaria.settling import utility

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
    """The score without growth: as measured until the first birth, from then on a damped trend.

    f(b + k) = s_b + m (d + d^2 + ... + d^k), with s_b the last score before the birth and m its rise an epoch: the
    last one or the window's mean, whichever is smaller, and never a fall. After a fall by `FALL` nothing is foreseen:
    the model may recover by itself, and growth must not get the credit
    """

    scores: list[float] = field(default_factory=list)
    """The last ones before the birth."""
    epochs_since: int = 0

    def advance(self, score: float | None, *, grown: bool) -> float | None:
        """One epoch on; None where nothing can be foreseen."""
        if grown:
            self.epochs_since += 1
        elif score is not None:
            self.scores = [*self.scores, score][-WINDOW:]
        return self.now

    @property
    def now(self) -> float | None:
        if not self.epochs_since:
            return self.scores[-1] if self.scores else None
        if len(self.scores) < LEAST:
            return None
        if max(self.scores) - self.scores[-1] > FALL:
            return None
        first, before, last = self.scores[0], self.scores[-2], self.scores[-1]
        mean, latest = (last - first) / (len(self.scores) - 1), last - before
        trend = max(min(mean, latest), 0.0)
        reach = sum(DAMPING**k for k in range(1, self.epochs_since + 1))
        # Accuracy ends at 1; a score without it is minus a loss, and ends at 0.
        ceiling = 0.0 if max(self.scores) <= 0.0 else 1.0
        return min(last + trend * reach, max(ceiling, last))


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
        worth = utility(score, added, host, self.reward.rent)
        if self.reward.control_variate:
            worth -= score if control is None else control
        before, self._potential = self._potential, worth
        return 0.0 if before is None else self.reward.gamma * worth - before

    def gain(self, score: float | None, added: int, host: int) -> float | None:
        """Utility now over the forecast, at this loop's own rent; None while it is unknown."""
        if score is None or self.forecast.now is None:
            return None
        return utility(score, added, host, self.rent) - self.forecast.now

    def state_dict(self) -> dict[str, object]:
        return {"forecast": asdict(self.forecast), "potential": self._potential}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        forecast, potential = state["forecast"], state["potential"]
        if not isinstance(forecast, dict) or not (potential is None or isinstance(potential, float)):
            raise TypeError(f"forecast is {forecast!r}, potential {potential!r}; expected state_dict's")
        self.forecast, self._potential = Forecast(**forecast), potential
