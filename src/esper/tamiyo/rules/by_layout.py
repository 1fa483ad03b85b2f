"""Rules that choose by a slot's layout, which a `Grower` decides by where none is named.

by_layout      tries what suits each layout, early, and judges it by more than validation wavers
live_on        the same for runs without an end: grows when validation has fallen, and gives back what has decayed
frozen_spread  for hosts that do not learn themselves, a small residual in every slot but the last
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from esper.leyline import (
    ActionSpec,
    BlueprintCard,
    DecisionSettings,
    Layout,
    LifecycleOp,
    Situation,
    SlotSnapshot,
    Stage,
)
from esper.tamiyo.rules.policy import Remembering, affordable, comparison, pays, refusal, within_noise
from esper.tamiyo.tracker import Level

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
        undecided: list[str] = []
        for name in memory.trials:
            found = self._tend(live[name], situation)
            if isinstance(found, ActionSpec):
                return found
            undecided += [] if found is None else [f"{name}: {found}"]
        self.reason = "; ".join(undecided) or None
        return self._begin(situation) if self._in_time(situation) else ActionSpec()

    def _tend(self, seed: SlotSnapshot, situation: Situation) -> ActionSpec | str | None:
        """Lead a candidate to its full strength and judge it there; None while it is too young, or words why not."""
        self.reason = None
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
            unclear = "so late it stays, since the host has learned with it"
            self.reason = (
                comparison(seed, signals, margin=margin, rent=self.rent)
                if helps
                else f"{within_noise(seed, signals, noise=margin, rent=self.rent)}: {unclear}"
            )
        elif harms and (not late or seed.contribution is None):
            verdict = ActionSpec(LifecycleOp.PRUNE, seed.name, alpha_speed=3)
            stuck = f"it could not be advanced in {seed.age} epochs"
            compared = comparison(seed, signals, margin=-margin, rent=self.rent)
            self.reason = stuck if seed.stage is Stage.TRAINING else compared
        elif harms:
            return "not worth its rent, but so late the end decides: the host has learned with it"
        else:
            return "within the noise of validation, neither worth its rent nor not"
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
                self.reason = suits(slot, situation)
                return action
        return ActionSpec()


def suits(slot: str, situation: Situation) -> str:
    """Why a candidate was chosen, in words."""
    layout = next(each.layout for each in situation.slots if each.name == slot)
    return f"suits a slot of layout {layout.value}"


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


FADE = 3
"""Epochs over which what goes fades out."""


@dataclass
class _Life:
    """What it remembers, however long the run is."""

    level: Level = field(default_factory=Level)
    wanted: float | None = None
    """The score that ends the search for more: validation has come back."""
    queue: list[tuple[str, str]] = field(default_factory=list)
    """(slot, blueprint) still to be tried since validation fell."""
    trial: str | None = None
    """The slot of the candidate on trial."""


@dataclass(kw_only=True)
class LiveOnPolicy(Remembering[_Life]):
    """Waits while validation holds its level. When it has been `drop` below it for `patience` epochs, tries what
    suits the slots' layouts, one after another, until validation is back.

    A candidate is germinated, advanced as soon as that is legal, and judged when it is `judge_age` epochs old:
    fossilised when its contribution exceeds its rent by `noise_margin` times the noise of validation, else faded out.
    Where the parameter budget has no room for a candidate, or a fossil holds its slot, fossils that have decayed are
    retired first; those that still earn their rent stay, and the next candidate is looked at.
    """

    drop: float = 0.05
    """How far below its level validation (the score) has fallen."""
    patience: int = 2
    """Epochs in a row that it has: one may be noise."""
    judge_age: int = 8
    """Epochs from a germination to its verdict."""
    noise_margin: float = 1.0
    """Standard deviations of validation from one epoch to the next."""
    rent: float = 0.01
    """Utility per host's worth of parameters: for a candidate to stay, and for a fossil not to decay."""
    decay_epochs: int = 3
    """Epochs in a row below its rent after which a fossil may be retired."""

    def __post_init__(self) -> None:
        if not self.drop > 0:
            raise ValueError(f"drop is {self.drop}; expected > 0")
        for name in ("patience", "judge_age"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected >= 1 epoch")
        self.decisions = DecisionSettings(retire=True, decay_epochs=self.decay_epochs, decay_rent=self.rent)
        super().__init__(_Life)

    def act(self, situation: Situation) -> ActionSpec:
        """Go on with the candidate on trial, or begin the next one that is needed."""
        memory, score = self.memory, situation.signals.score
        self.reason = None
        lost = memory.level.record(score, drop=self.drop, patience=self.patience)
        if lost is not None:
            memory.queue, memory.wanted = suited_candidates(situation), lost - self.drop
        seed = next((slot for slot in situation.slots if slot.name == memory.trial), None)
        if seed is not None and seed.stage.is_live and not seed.fading:
            return self._tend(seed, situation)
        memory.trial = None
        if memory.wanted is not None and score is not None and score >= memory.wanted:
            memory.queue, memory.wanted = [], None
        return self._begin(situation)

    def _tend(self, seed: SlotSnapshot, situation: Situation) -> ActionSpec:
        """Lead a candidate to its full strength and judge it there."""
        advance = ActionSpec(LifecycleOp.ADVANCE, seed.name)
        if refusal(advance, situation) is None:
            return advance
        if seed.age < self.judge_age:
            return ActionSpec()
        margin = self.noise_margin * noise_of(self.memory.level.scores)
        stays = pays(seed, situation.signals, margin=margin, rent=self.rent)
        if stays is None and seed.stage is not Stage.TRAINING:
            return ActionSpec()  # not measured yet
        verdict = ActionSpec(LifecycleOp.PRUNE, seed.name, alpha_speed=FADE)
        if stays:
            verdict = ActionSpec(LifecycleOp.FOSSILIZE, seed.name)
        stuck = f"it could not be advanced in {seed.age} epochs"
        compared = comparison(seed, situation.signals, margin=margin, rent=self.rent)
        self.reason = stuck if seed.stage is Stage.TRAINING else compared
        return verdict if refusal(verdict, situation) is None else ActionSpec()

    def _begin(self, situation: Situation) -> ActionSpec:
        """Germinate the first candidate that has a slot and room, or make room for one."""
        memory, slots = self.memory, {slot.name: slot for slot in situation.slots}
        leaving = any(slot.fading for slot in situation.slots)
        for slot, blueprint in memory.queue:
            card = next(card for card in situation.cards[slot] if card.name == blueprint)
            needed = card.parameters - situation.signals.room
            fossil = slots[slot] if slots[slot].stage is Stage.FOSSILIZED else None
            if fossil is not None or needed > 0:
                if leaving:
                    return ActionSpec()  # its room is on the way
                retire = self._retirement(situation, fossil, needed)
                if retire is not None:
                    return retire
                continue
            action = ActionSpec(LifecycleOp.GERMINATE, slot, blueprint)
            if refusal(action, situation) is None:
                memory.queue.remove((slot, blueprint))
                memory.trial = slot
                self.reason = f"{suits(slot, situation)}, and validation has fallen"
                return action
        return ActionSpec()

    def _retirement(
        self, situation: Situation, fossil: SlotSnapshot | None, needed: float
    ) -> ActionSpec | None:
        """Retire a decayed fossil: the one in the way, or the one below its rent for longest; None if none helps.

        fossil  what holds the candidate's slot
        needed  parameters without room for the candidate
        """
        decayed = [slot for slot in situation.slots if slot.decayed]
        if fossil is not None and not fossil.decayed:
            return None
        if needed > sum(slot.parameters for slot in decayed):
            return None
        oldest = sorted(decayed, key=lambda slot: slot.decay_epochs, reverse=True)
        for slot in [fossil] if fossil is not None else oldest:
            retire = ActionSpec(LifecycleOp.RETIRE, slot.name, alpha_speed=FADE)
            if refusal(retire, situation) is None:
                self.reason = "a candidate needs its room"
                return retire
        return None


_RESIDUALS_OF_GRIDS = ("conv_small", ("conv_light", "conv_small", "bottleneck", "lora", "norm"))
_RESIDUALS_OF_VECTORS = ("mlp_small", ("mlp", "mlp_small", "lora_large", "lora", "norm"))
ADAPTERS = {
    Layout.IMAGE: _RESIDUALS_OF_GRIDS,
    Layout.IMAGE_LAST: _RESIDUALS_OF_GRIDS,
    Layout.VOLUME: _RESIDUALS_OF_GRIDS,
    Layout.VOLUME_LAST: _RESIDUALS_OF_GRIDS,
    Layout.SERIES: _RESIDUALS_OF_GRIDS,
    Layout.TOKENS: _RESIDUALS_OF_VECTORS,
    Layout.TIME_MAJOR: _RESIDUALS_OF_VECTORS,
    Layout.FLAT: _RESIDUALS_OF_VECTORS,
    Layout.ROWS: _RESIDUALS_OF_VECTORS,
}
"""layout -> the usual kind of residual, and the kinds that a parameter budget is spent on."""
EPOCHS_TO_FULL_STRENGTH = 5
"""From germination: one behind the host, three of the ramp, and one to learn in."""
HEAD_START = 2
"""Epochs that the head has to itself, a tenth of the run at most. Blended before the head has met its data, a
residual can throw accuracy back to chance for longer than the governor waits."""


@dataclass
class _Spread:
    """What is still to be grown in an episode."""

    places: list[tuple[str, str]] | None = None
    """(slot, blueprint); None before the first decision."""
    grown: list[str] = field(default_factory=list)
    """Slots in the order of germination."""


class FrozenSpreadPolicy(Remembering[_Spread]):
    """Grows a residual of the layout's usual kind in every slot but the last, one after another from the input on.

    It begins when the head has learned a little. With a parameter budget each place has an equal share of it, and
    gets the largest kind that the share has room for. Nothing is judged but at the end of the run: a residual is born
    with a scale of zero, and a host that does not learn cannot come to depend on it. Where more are to come than may
    live at once, the oldest is fossilised.
    """

    def __init__(self) -> None:
        super().__init__(_Spread)

    def act(self, situation: Situation) -> ActionSpec:
        """Advance what is ready, germinate the next, or make room for it."""
        memory = self.memory
        if memory.places is None:
            memory.places = even_spread(situation)
        for name in memory.grown:
            advance = ActionSpec(LifecycleOp.ADVANCE, name)
            if refusal(advance, situation) is None:
                return advance
        signals = situation.signals
        if not memory.places or signals.epoch not in self.may_begin(signals.horizon):
            return ActionSpec()
        slot, blueprint = memory.places[0]
        germinate = ActionSpec(LifecycleOp.GERMINATE, slot, blueprint)
        if refusal(germinate, situation) is None:
            memory.places.pop(0)
            memory.grown.append(slot)
            return germinate
        for name in memory.grown:
            fossilize = ActionSpec(LifecycleOp.FOSSILIZE, name)
            if refusal(fossilize, situation) is None:
                return fossilize
        return ActionSpec()

    def may_begin(self, horizon: int) -> range:
        """The epochs after which it may germinate, in a run of `horizon` epochs."""
        return range(min(HEAD_START, horizon // 10), horizon - EPOCHS_TO_FULL_STRENGTH + 1)


def even_spread(situation: Situation) -> list[tuple[str, str]]:
    """(slot, blueprint) for every slot but the last (or the only one) that has room for a kind of its layout."""
    slots = [slot for slot in situation.slots if slot.stage is Stage.DORMANT]
    slots = slots[:-1] or slots
    budget = situation.signals.parameter_budget
    share = None if budget is None else (budget - situation.signals.added_parameters) / max(len(slots), 1)
    chosen = ((slot.name, _adapter(slot.layout, situation.cards[slot.name], share)) for slot in slots)
    return [(name, card.name) for name, card in chosen if card is not None]


def _adapter(layout: Layout, offered: tuple[BlueprintCard, ...], share: float | None) -> BlueprintCard | None:
    """The usual kind; with a share of a budget the largest kind that fits; None where nothing does."""
    usual, kinds = ADAPTERS[layout]
    cards = {card.name: card for card in offered if card.name in kinds}
    if share is None:
        return cards.get(usual) or next((cards[kind] for kind in kinds if kind in cards), None)
    fitting = [card for card in cards.values() if card.parameters <= share]
    return max(fitting, key=lambda card: card.parameters, default=None)
