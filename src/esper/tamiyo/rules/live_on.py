"""`live_on`: for runs without an end. Grows when validation has fallen, and gives back what has decayed for room."""

from dataclasses import dataclass, field

from esper.leyline import ActionSpec, DecisionSettings, LifecycleOp, Situation, SlotSnapshot, Stage
from esper.tamiyo.falls import Level
from esper.tamiyo.rules.by_layout import noise_of, suited_candidates
from esper.tamiyo.rules.policy import Remembering, comparison, pays, refusal

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
