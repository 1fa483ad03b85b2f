"""Rules that try one candidate after another, judge each by what it contributes, and keep or prune it."""

from collections.abc import Sequence

from esper.leyline import ActionSpec, LifecycleOp, Situation, SlotSnapshot, Stage
from esper.tamiyo.rules.reading import affordable, cheapest_first, pays, refusal, standing

CANDIDATES = ("mixer@2", "conv_small@2", "mixer@1", "mixer@0")
"""blueprint@position of the slot, in the order they are tried."""


class ProbeAndKeepPolicy:
    """Tries candidates one after another, cheap ones first; the rule to beat.

    Each is germinated, advanced as soon as that is legal, and judged once, when it is `judge_age` epochs old and
    its contribution is known: kept if that exceeds `margin` + `rent` x its parameters / the host's, else pruned; so
    is one that could not even be advanced by then.
    A candidate that the host does not offer is replaced by the cheapest offer that is not yet on the list. None is
    begun that could not be judged before the end, or that the parameter budget has no room for.

    start  the first epoch at which one is germinated
    """

    __slots__ = ("_queue", "_trial", "_verdict", "candidates", "judge_age", "margin", "rent", "start")

    def __init__(
        self,
        *,
        candidates: Sequence[str] = CANDIDATES,
        start: int = 4,
        judge_age: int = 4,
        margin: float = 0.02,
        rent: float = 0.01,
    ) -> None:
        self.candidates = tuple(_candidate(text) for text in candidates)
        if judge_age < 1:
            raise ValueError(f"judge_age is {judge_age}; expected >= 1 epoch")
        self.start, self.judge_age, self.margin, self.rent = start, judge_age, margin, rent
        self.reset()

    def reset(self) -> None:
        self._queue: list[tuple[str, str]] | None = None
        self._trial: str | None = None
        self._verdict: bool | None = None

    @property
    def finished(self) -> bool:
        """Whether every candidate has been tried."""
        return self._queue == [] and self._trial is None

    def act(self, situation: Situation) -> ActionSpec:
        if self._queue is None:
            self._queue = resolve_candidates(self.candidates, situation)
        if self._trial is not None:
            seed = next(slot for slot in situation.slots if slot.name == self._trial)
            if seed.stage.is_live and not seed.fading:
                return self._continue(seed, situation)
            self._trial = None
        return self._begin(situation) if situation.signals.epoch >= self.start else ActionSpec()

    def _continue(self, seed: SlotSnapshot, situation: Situation) -> ActionSpec:
        """See a trial through to its verdict, and the verdict through to its execution."""
        advance = ActionSpec(LifecycleOp.ADVANCE, seed.name)
        if refusal(advance, situation) is None:
            return advance
        if self._verdict is None and seed.age >= self.judge_age:
            stuck = seed.stage is Stage.TRAINING
            self._verdict = (
                False if stuck else pays(seed, situation.signals, margin=self.margin, rent=self.rent)
            )
        if self._verdict is None:
            return ActionSpec()
        end = ActionSpec(LifecycleOp.FOSSILIZE if self._verdict else LifecycleOp.PRUNE, seed.name)
        return end if refusal(end, situation) is None else ActionSpec()

    def _begin(self, situation: Situation) -> ActionSpec:
        """Germinate the next candidate, once its slot is free; drop those whose slot never will be."""
        signals = situation.signals
        assert self._queue is not None
        if signals.epoch + self.judge_age >= signals.horizon:
            return ActionSpec()
        stages = {slot.name: slot.stage for slot in situation.slots}
        while self._queue:
            slot, blueprint = self._queue[0]
            card = next(card for card in situation.cards[slot] if card.name == blueprint)
            if stages[slot] is Stage.FOSSILIZED or not affordable(card, signals):
                self._queue.pop(0)
                continue
            action = ActionSpec(LifecycleOp.GERMINATE, slot, blueprint)
            if refusal(action, situation) is not None:
                return ActionSpec()  # an embargo, or no live place: both pass
            self._queue.pop(0)
            self._trial, self._verdict = slot, None
            return action
        return ActionSpec()


class DetectThenProbePolicy:
    """Waits for validation to fall, as it does when the data have changed, and then probes.

    drop  how far validation accuracy (or the negative loss, without one) must fall below its best

    The other options are those of ProbeAndKeepPolicy. When every candidate was tried it watches again.
    """

    __slots__ = ("_best", "_probe", "_probing", "drop")

    def __init__(
        self,
        *,
        drop: float = 0.15,
        candidates: Sequence[str] = CANDIDATES,
        judge_age: int = 4,
        margin: float = 0.02,
        rent: float = 0.01,
    ) -> None:
        if not drop > 0:
            raise ValueError(f"drop is {drop}; expected > 0")
        self.drop = drop
        self._probe = ProbeAndKeepPolicy(
            candidates=candidates, start=0, judge_age=judge_age, margin=margin, rent=rent
        )
        self.reset()

    def reset(self) -> None:
        self._probe.reset()
        self._probing = False
        self._best: float | None = None

    def act(self, situation: Situation) -> ActionSpec:
        if not self._probing:
            self._probing = self._fell(standing(situation.signals))
        if not self._probing:
            return ActionSpec()
        action = self._probe.act(situation)
        if action.op is LifecycleOp.WAIT and self._probe.finished:
            self.reset()
        return action

    def _fell(self, now: float | None) -> bool:
        if now is None:
            return False
        self._best = now if self._best is None else max(self._best, now)
        return self._best - now > self.drop


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
