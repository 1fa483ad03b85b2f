"""Rules that try one candidate after another, judge each by what it contributes, and keep or prune it."""

from collections.abc import Sequence
from dataclasses import dataclass

from esper.leyline import ActionSpec, LifecycleOp, Situation, SlotSnapshot, Stage
from esper.tamiyo.rules.policy import Remembering, affordable, cheapest_first, comparison, pays, refusal

CANDIDATES = ("mixer@2", "conv_small@2", "mixer@1", "mixer@0")
"""blueprint@position of the slot, in the order they are tried."""


@dataclass
class _Trials:
    """What probing has come to in an episode."""

    queue: list[tuple[str, str]] | None = None
    """(slot, blueprint) still to be tried; None before the first decision."""
    trial: str | None = None
    """The slot of the candidate on trial."""
    verdict: bool | None = None
    """Whether it is to be kept; None while that is not known."""
    best: float | None = None
    """The best validation so far, while watching for a fall."""
    probing: bool = False
    """Whether validation fell."""


@dataclass(kw_only=True)
class ProbeAndKeepPolicy(Remembering[_Trials]):
    """Tries candidates one after another, cheap ones first; the rule to beat.

    Each is germinated, advanced as soon as that is legal, and judged once, when it is `judge_age` epochs old and
    its contribution is known: kept if that exceeds `margin` + `rent` x its parameters / the host's, else pruned; so
    is one that could not even be advanced by then.
    A candidate that the host does not offer is replaced by the cheapest offer that is not yet on the list. None is
    begun that could not be judged before the end, or that the parameter budget has no room for.
    """

    candidates: Sequence[str] = CANDIDATES
    start: int = 4
    """The first epoch at which one is germinated."""
    judge_age: int = 4
    margin: float = 0.02
    rent: float = 0.01

    def __post_init__(self) -> None:
        self._offers = [_candidate(text) for text in self.candidates]
        if self.judge_age < 1:
            raise ValueError(f"judge_age is {self.judge_age}; expected >= 1 epoch")
        super().__init__(_Trials)

    def act(self, situation: Situation) -> ActionSpec:
        """Go on with the candidate on trial, or begin the next one."""
        memory, self.reason = self.memory, None
        if memory.queue is None:
            memory.queue = resolve_candidates(self._offers, situation)
        if memory.trial is not None:
            seed = next((slot for slot in situation.slots if slot.name == memory.trial), None)
            if seed is not None and seed.stage.is_live and not seed.fading:
                return self._continue(seed, situation)
            memory.trial = None
        signals = situation.signals
        in_time = signals.epoch in self.may_begin(signals.horizon)
        return self._begin(situation) if in_time else ActionSpec()

    def may_begin(self, horizon: int) -> range:
        """The epochs after which it may germinate, in a run of `horizon` epochs."""
        return range(self.start, horizon - self.judge_age)

    def _continue(self, seed: SlotSnapshot, situation: Situation) -> ActionSpec:
        """See a trial through to its verdict, and the verdict through to its execution."""
        memory, advance = self.memory, ActionSpec(LifecycleOp.ADVANCE, seed.name)
        if refusal(advance, situation) is None:
            return advance
        if memory.verdict is None and seed.age >= self.judge_age:
            stuck = seed.stage is Stage.TRAINING
            signals, compared = situation.signals, {"margin": self.margin, "rent": self.rent}
            memory.verdict = False if stuck else pays(seed, signals, **compared)
            waited = f"it could not be advanced in {seed.age} epochs"
            self.reason = waited if stuck else comparison(seed, signals, **compared)
        if memory.verdict is None:
            return ActionSpec()
        end = ActionSpec(LifecycleOp.FOSSILIZE if memory.verdict else LifecycleOp.PRUNE, seed.name)
        return end if refusal(end, situation) is None else ActionSpec()

    def _begin(self, situation: Situation) -> ActionSpec:
        """Germinate the next candidate, once its slot is free; drop those whose slot never will be."""
        signals, memory = situation.signals, self.memory
        assert memory.queue is not None
        stages = {slot.name: slot.stage for slot in situation.slots}
        while memory.queue:
            slot, blueprint = memory.queue[0]
            card = next(card for card in situation.cards[slot] if card.name == blueprint)
            if stages[slot] is Stage.FOSSILIZED or not affordable(card, signals):
                memory.queue.pop(0)
                continue
            action = ActionSpec(LifecycleOp.GERMINATE, slot, blueprint)
            if refusal(action, situation) is not None:
                return ActionSpec()  # an embargo, or no live place: both pass
            memory.queue.pop(0)
            memory.trial, memory.verdict = slot, None
            return action
        return ActionSpec()


@dataclass(kw_only=True)
class DetectThenProbePolicy(ProbeAndKeepPolicy):
    """Waits for validation to fall, as it does when the data have changed, and then probes.

    When every candidate was tried it watches again.
    """

    drop: float = 0.15
    """How far the score (validation accuracy; without one, minus the loss) must fall below its best."""
    start: int = 0

    def __post_init__(self) -> None:
        if not self.drop > 0:
            raise ValueError(f"drop is {self.drop}; expected > 0")
        super().__post_init__()

    def act(self, situation: Situation) -> ActionSpec:
        """Wait until validation falls, then probe until every candidate was tried."""
        memory = self.memory
        memory.probing = memory.probing or self._fell(situation.signals.score)
        if not memory.probing:
            return ActionSpec()
        action = super().act(situation)
        if action.op is LifecycleOp.WAIT and self.memory.queue == [] and self.memory.trial is None:
            self.reset()
        return action

    def _fell(self, now: float | None) -> bool:
        if now is None:
            return False
        best = self.memory.best
        best = self.memory.best = now if best is None else max(best, now)
        return best - now > self.drop


def resolve_candidates(candidates: Sequence[tuple[str, int]], situation: Situation) -> list[tuple[str, str]]:
    """(slot, blueprint) for each (blueprint, position): as asked where offered, else the cheapest one left."""
    names = [slot.name for slot in situation.slots]
    asked: list[tuple[str, str] | None] = []
    for blueprint, position in candidates:
        slot = names[position] if position < len(names) else None
        offered = slot is not None and blueprint in (card.name for card in situation.cards[slot])
        asked.append((slot, blueprint) if slot is not None and offered else None)
    others = iter(
        offer
        for offer in ((slot, card.name) for slot, card in cheapest_first(situation))
        if offer not in asked
    )
    chosen = [offer if offer is not None else next(others, None) for offer in asked]
    return [offer for offer in chosen if offer is not None]


def _candidate(text: str) -> tuple[str, int]:
    blueprint, at, position = text.partition("@")
    if not blueprint or not at or not position.isdecimal():
        raise ValueError(f"candidate is {text!r}; expected blueprint@position, such as 'mixer@2'")
    return blueprint, int(position)
