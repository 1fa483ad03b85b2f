"""The score without growth as far as a single run can know it, and the reward that a controller is shown.

A run that grows has no baseline, the same host trained without growth. In training the baseline is known, and the
learner is paid by it; what the actor sees of its last step is the same in training, in benchmarks and in use.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from esper.leyline.utility import utility
from esper.tamiyo.controller import RewardRecord

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
        """The score without growth at this epoch; None where nothing can be foreseen."""
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
    """The reward that a controller is shown after an epoch: with the forecast in the baseline's place."""

    rent: float
    reward: RewardRecord | None
    """Of the controller; None for rules, which see no reward."""
    forecast: Forecast = field(default_factory=Forecast)
    _potential: float | None = None

    def pay(self, score: float | None, added: int, host: int, *, grown: bool) -> float:
        """gamma phi(s') - phi(s); 0 where either is unknown."""
        baseline = self.forecast.advance(score, grown=grown)
        if self.reward is None or self.reward.mode == "sparse" or score is None:
            return 0.0
        worth = utility(score, self.reward.rent, added, host)
        if self.reward.control_variate:
            worth -= score if baseline is None else baseline
        before, self._potential = self._potential, worth
        return 0.0 if before is None else self.reward.gamma * worth - before

    def gain(self, score: float | None, added: int, host: int) -> float | None:
        """Utility now over the forecast, at this loop's own rent; None while it is unknown."""
        if score is None or self.forecast.now is None:
            return None
        return utility(score, self.rent, added, host) - self.forecast.now

    def state_dict(self) -> dict[str, object]:
        """The forecast and the last potential."""
        return {"forecast": asdict(self.forecast), "potential": self._potential}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken."""
        forecast, potential = state["forecast"], state["potential"]
        if not isinstance(forecast, dict) or not (potential is None or isinstance(potential, float)):
            raise TypeError(f"forecast is {forecast!r}, potential {potential!r}; expected state_dict's")
        self.forecast, self._potential = Forecast(**forecast), potential
