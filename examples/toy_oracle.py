"""The exact best that can be done with a toy instance, given everything that it hides.

Without noise the final utility is a sum over slots, so dynamic programming over the slots' stages finds the
best plan. It searches the plans in which every slot is germinated at most once, with alpha target 1 and a
composition without a gate, and nothing is pruned or sent to another target. No plan outside does better:

- A seed that is pruned or rolled back adds nothing in the end, may leave a scar, and holds a place and a slot.
  With its operations replaced by WAIT every other operation stays legal, and the utility does not fall. So at
  most one seed per slot is left, and it is the one that the product has.
- What is kept is worth having, so its gain is positive (settling drops the others, unless they were
  fossilised, and then not having had them is better), and the governor does not condemn it. Its effect grows
  with alpha and with its clock: target 1, no gate (which only costs rent), and of the first ramps the one that
  has come furthest at the horizon, which is one of tempo 3; that one also arrives first and so can be
  fossilised first.
- The value of a seed is settled when it is advanced: alpha and clock at the horizon follow from the epochs it
  had trained and those that remain. Afterwards it only holds a place, until it is fossilised.
- WAIT is not tried while a seed that is worth it could be advanced: exchanging the two only makes it older.
"""

from dataclasses import dataclass
from functools import lru_cache

from esper.kasmina.stage_machine import GrowthRules, curve_value
from esper.leyline import STYLES, TEMPOS, ActionSpec, Composition, LifecycleOp, Settle, Style
from esper.leyline.utility import rent_due
from esper.tolaria.worlds.toy.host import ISOLATED_SHARE, host_curve, maturity
from esper.tolaria.worlds.toy.instance import HOST_PARAMETERS, ToyInstance, toy_cards

_DORMANT, _FOSSILIZED = 0, -1_000_000
"""A slot's state: these, k > 0 for k epochs of TRAINING, -j for j epochs since ADVANCE."""
_States = tuple[int, ...]
_IMPOSSIBLE = float("-inf")


@dataclass(frozen=True, slots=True)
class OraclePlan:
    """The best plan for one noise-free instance."""

    utility: float
    """Validation accuracy minus rent of the settled model at the horizon."""
    baseline: float
    """Utility of the bare host at the horizon."""
    actions: tuple[ActionSpec, ...]
    """What to do at each step."""

    @property
    def gain(self) -> float:
        """Utility minus the baseline's."""
        return self.utility - self.baseline


@dataclass(frozen=True, slots=True)
class _Worth:
    """What advancing a seed brings in the end, and what it must have been germinated as."""

    value: float
    blueprint: str
    style: Style
    tempo: int


def best_plan(
    instance: ToyInstance,
    *,
    horizon: int,
    rent: float = 0.01,
    rules: GrowthRules | None = None,
    settle: Settle = "worth",
) -> OraclePlan:
    """The highest noise-free final utility that any sequence of legal actions reaches, and one that does."""
    search = _Search(instance, horizon, rent, GrowthRules() if rules is None else rules, settle)
    baseline = host_curve(instance, horizon)[horizon]
    start = (_DORMANT,) * instance.slots
    return OraclePlan(baseline + search.value(0, start), baseline, search.actions(start))


class _Search:
    """Dynamic programming over (step, state of every slot)."""

    def __init__(
        self, instance: ToyInstance, horizon: int, rent: float, rules: GrowthRules, settle: Settle
    ) -> None:
        self.instance, self.horizon, self.rent, self.rules = instance, horizon, rent, rules
        self.settle = settle
        self.ripe = -(min(TEMPOS) + max(rules.min_holding_epochs - 1, 0))
        """State of a seed that can be fossilised: it has arrived, and arriving counts as the first epoch held."""
        self._values: dict[tuple[int, _States], tuple[float, LifecycleOp, int]] = {}
        self.worth = lru_cache(maxsize=None)(self._worth)

    def value(self, step: int, states: _States) -> float:
        """The best sum of what is still to be added to the final utility."""
        return self._best(step, states)[0]

    def actions(self, states: _States) -> tuple[ActionSpec, ...]:
        """A best plan, spelled out."""
        path: list[tuple[LifecycleOp, int]] = []
        advanced: dict[int, _Worth] = {}
        for step in range(self.horizon):
            _, op, slot = self._best(step, states)
            if op is LifecycleOp.ADVANCE:
                advanced[slot] = self.worth(slot, states[slot], step)
            path.append((op, slot))
            states = self._after(states, op, slot)
        return tuple(self._spell(op, slot, advanced) for op, slot in path)

    def _best(self, step: int, states: _States) -> tuple[float, LifecycleOp, int]:
        if step == self.horizon:
            unfinished = self.settle == "committed" and any(_FOSSILIZED < state < 0 for state in states)
            return (_IMPOSSIBLE if unfinished else 0.0), LifecycleOp.WAIT, 0
        key = (step, states)
        if key not in self._values:
            self._values[key] = max(self._options(step, states), key=lambda option: option[0])
        return self._values[key]

    def _options(self, step: int, states: _States) -> list[tuple[float, LifecycleOp, int]]:
        live = sum(state != _DORMANT and state != _FOSSILIZED for state in states)
        moves: list[tuple[float, LifecycleOp, int]] = []
        for slot, state in enumerate(states):
            if state == _DORMANT and live < self.rules.max_live_seeds:
                moves.append((0.0, LifecycleOp.GERMINATE, slot))
            elif state > 0 and state >= self.rules.min_training_epochs:
                worth = self.worth(slot, state, step).value
                if worth > 0.0:
                    moves.append((worth, LifecycleOp.ADVANCE, slot))
            elif state == self.ripe:
                moves.append((0.0, LifecycleOp.FOSSILIZE, slot))
        if not any(op is LifecycleOp.ADVANCE for _, op, _ in moves):
            moves.insert(0, (0.0, LifecycleOp.WAIT, 0))  # first, so that nothing is done for nothing
        return [
            (gain + self.value(step + 1, self._after(states, op, slot)), op, slot) for gain, op, slot in moves
        ]

    def _after(self, states: _States, op: LifecycleOp, acted: int) -> _States:
        """The operation, then the epoch's tick."""
        following = []
        for slot, state in enumerate(states):
            if slot == acted and op is LifecycleOp.GERMINATE:
                following.append(1)
            elif slot == acted and op is LifecycleOp.ADVANCE:
                following.append(-1)
            elif slot == acted and op is LifecycleOp.FOSSILIZE:
                following.append(_FOSSILIZED)
            elif state in (_DORMANT, _FOSSILIZED):
                following.append(state)
            else:
                following.append(state + 1 if state > 0 else max(state - 1, self.ripe))
        return tuple(following)

    def _worth(self, slot: int, trained: int, step: int) -> _Worth:
        """The best seed to have trained for `trained` epochs in this slot and to advance at this step."""
        remaining = self.horizon - step
        clock = ISOLATED_SHARE * trained + remaining
        tempo = min(TEMPOS)
        style = max(
            (style for style in STYLES if style.composition is Composition.ADD),
            key=lambda style: curve_value(style.first_curve, remaining / tempo),
        )
        alpha = curve_value(style.first_curve, remaining / tempo)
        gains = self.instance.phase_at(self.horizon).gains[slot]
        return max(
            (
                _Worth(
                    alpha * gain * maturity(clock, epochs)
                    - rent_due(self.rent, card.parameters, HOST_PARAMETERS),
                    card.name,
                    style,
                    tempo,
                )
                for card, gain, epochs in zip(
                    toy_cards()[slot], gains, self.instance.epochs_to_learn, strict=True
                )
            ),
            key=lambda worth: worth.value,
        )

    def _spell(self, op: LifecycleOp, slot: int, advanced: dict[int, _Worth]) -> ActionSpec:
        if op is LifecycleOp.WAIT or slot not in advanced:
            return ActionSpec()  # germinated, but not worth advancing
        name = self.instance.slot_config.slot_ids[slot]
        if op is not LifecycleOp.GERMINATE:
            return ActionSpec(op, name)
        worth = advanced[slot]
        return ActionSpec(op, name, worth.blueprint, style=worth.style, tempo=worth.tempo)
