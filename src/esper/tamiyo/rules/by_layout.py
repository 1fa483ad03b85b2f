"""`by_layout`: tries what suits a slot's layout, early, and judges it by more than validation wavers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from esper.leyline import ActionSpec, Layout, LifecycleOp, Situation, SlotSnapshot, Stage
from esper.tamiyo.rules.policy import Remembering, affordable, comparison, pays, refusal

_GRID = (("mixer", "first"), ("conv_light", "last"), ("widen", "first"))
_SEQUENCE = (("attention", "first"), ("mlp", "last"), ("widen", "first"))
_TABLE = (("widen", "first"),)
SUITED = {
    Layout.IMAGE: _GRID,
    Layout.IMAGE_LAST: _GRID,
    Layout.VOLUME: _GRID,
    Layout.VOLUME_LAST: _GRID,
    Layout.SERIES: _GRID,
    Layout.TOKENS: _SEQUENCE,
    Layout.TIME_MAJOR: _SEQUENCE,
    Layout.FLAT: _TABLE,
    Layout.ROWS: _TABLE,
}
"""layout -> blueprints in the order they are tried, each from the first slot on or from the last one back."""


@dataclass
class _Trials:
    """What has been tried in an episode."""

    queue: list[tuple[str, str]] | None = None
    """(slot, blueprint) still to be tried; None before the first decision."""
    trials: list[str] = field(default_factory=list)
    """The slots of the candidates on trial."""
    scores: list[float] = field(default_factory=list)
    """After each epoch in which validation was known."""


@dataclass(kw_only=True)
class ByLayoutPolicy(Remembering[_Trials]):
    """Tries the blueprints that suit each slot's layout, as many at once as may live, from the first epoch on.

    Each is germinated, advanced as soon as that is legal, and judged once it is two fifths of the run old: fossilised
    when its contribution exceeds its rent by `noise_margin` times the noise of validation, faded out when it falls
    short by as much. What is still in between when a fifth of the run is left is fossilised too: to take out what a
    host has learned with costs more than to leave it. What could not be measured is faded out.

    None is begun that is larger than the host, or than the parameter budget has room for, or that could not be judged
    with a fifth of the run left to recover in, or while the learning rate is under `least_rate` of its highest so
    far: what is begun late is not learned.
    """

    noise_margin: float = 1.0
    """Standard deviations of validation from one epoch to the next."""
    rent: float = 0.01
    """Utility per host's worth of added parameters."""
    least_rate: float = 0.5
    """Share of the highest learning rate so far."""

    def __post_init__(self) -> None:
        super().__init__(_Trials)

    def act(self, situation: Situation) -> ActionSpec:
        """Go on with the candidates on trial, or begin the next one."""
        memory, self.reason = self.memory, None
        if memory.queue is None:
            memory.queue = suited_candidates(situation)
        if situation.signals.score is not None:
            memory.scores.append(situation.signals.score)
        live = {slot.name: slot for slot in situation.slots if slot.stage.is_live and not slot.fading}
        memory.trials = [name for name in memory.trials if name in live]
        for name in memory.trials:
            action = self._tend(live[name], situation)
            if action is not None:
                return action
        return self._begin(situation) if self._in_time(situation) else ActionSpec()

    def _tend(self, seed: SlotSnapshot, situation: Situation) -> ActionSpec | None:
        """Lead a candidate to its full strength and judge it there; None while there is nothing to do."""
        advance = ActionSpec(LifecycleOp.ADVANCE, seed.name)
        if refusal(advance, situation) is None:
            return advance
        signals = situation.signals
        if seed.age < trial_epochs(signals.horizon):
            return None
        margin = self.noise_margin * noise_of(self.memory.scores)
        helps = pays(seed, signals, margin=margin, rent=self.rent)
        # What nobody measured is not kept either.
        harms = seed.stage is Stage.TRAINING or not pays(seed, signals, margin=-margin, rent=self.rent)
        late = signals.epoch + recovery_epochs(signals.horizon) > signals.horizon
        if helps or (late and not harms):
            verdict = ActionSpec(LifecycleOp.FOSSILIZE, seed.name)
            compared = comparison(seed, signals, margin=margin, rent=self.rent)
            self.reason = compared if helps else f"{compared}, and it is too late to take it out"
        elif harms and (not late or seed.contribution is None):
            verdict = ActionSpec(LifecycleOp.PRUNE, seed.name, alpha_speed=3)
            stuck = f"it could not be advanced in {seed.age} epochs"
            compared = comparison(seed, signals, margin=-margin, rent=self.rent)
            self.reason = stuck if seed.stage is Stage.TRAINING else compared
        else:
            return None
        return verdict if refusal(verdict, situation) is None else None

    def _in_time(self, situation: Situation) -> bool:
        """Whether a candidate that begins now can be trained, judged and, if need be, recovered from."""
        signals = situation.signals
        share = signals.learning_rate_share
        soon_enough = signals.epoch in self.may_begin(signals.horizon)
        return soon_enough and (share is None or share >= self.least_rate)

    def may_begin(self, horizon: int) -> range:
        """The epochs after which it may germinate, in a run of `horizon` epochs."""
        return range(horizon - trial_epochs(horizon) - recovery_epochs(horizon) + 1)

    def _begin(self, situation: Situation) -> ActionSpec:
        """Germinate the first candidate in the queue whose slot is free."""
        memory, signals = self.memory, situation.signals
        assert memory.queue is not None
        stages = {slot.name: slot.stage for slot in situation.slots}
        for slot, blueprint in list(memory.queue):
            card = next(card for card in situation.cards[slot] if card.name == blueprint)
            if stages[slot] is Stage.FOSSILIZED or not affordable(card, signals):
                memory.queue.remove((slot, blueprint))
                continue
            action = ActionSpec(LifecycleOp.GERMINATE, slot, blueprint)
            if refusal(action, situation) is None:
                memory.queue.remove((slot, blueprint))
                memory.trials.append(slot)
                return action
        return ActionSpec()


def trial_epochs(horizon: int) -> int:
    """Epochs from a germination to its verdict: what a seed contributes at first says little of the end."""
    return max(5, 2 * horizon // 5)


def recovery_epochs(horizon: int) -> int:
    """Epochs that a host needs to do without a seed that it has learned with."""
    return max(2, horizon // 5)


def suited_candidates(situation: Situation) -> list[tuple[str, str]]:
    """(slot, blueprint): each suited blueprint at its first choice of a slot, then each at its second, and so on.

    One that is larger than the host is no candidate, nor the copy of a module without weights.
    """
    ranked: list[tuple[int, int, str, str]] = []
    for layout, kinds in SUITED.items():
        slots = [slot for slot in situation.slots if slot.layout is layout]
        for rank, (blueprint, end) in enumerate(kinds):
            ordered = slots if end == "first" else slots[::-1]
            places = [slot.name for slot in ordered if _is_offered(blueprint, slot, situation)]
            ranked += [(turn, rank, slot, blueprint) for turn, slot in enumerate(places)]
    return [(slot, blueprint) for _, _, slot, blueprint in sorted(ranked)]


def _is_offered(blueprint: str, slot: SlotSnapshot, situation: Situation) -> bool:
    """A seed has a scale for each channel; without further parameters it can express nothing new."""
    least, most = slot.channels + 1, situation.signals.host_parameters
    return any(
        card.name == blueprint and least <= card.parameters <= most for card in situation.cards[slot.name]
    )


def noise_of(scores: Sequence[float]) -> float:
    """The standard deviation of scores around a trend that bends slowly; 0 where fewer than four are known.

    s_t = trend_t + e_t, e_t independent: second differences s_t+1 - 2 s_t + s_t-1 have 6 times the variance of e_t.
    Their median size over 0.6745 is a normal's standard deviation, whatever a few of them are.
    """
    bends = [
        abs(after - 2 * now + before)
        for before, now, after in zip(scores[:-2], scores[1:-1], scores[2:], strict=True)
    ]
    return median(bends) / 0.6745 / 6**0.5 if len(bends) >= 2 else 0.0
