"""Rivals of growth on streams, at equal caps: upkeep of a host that does not grow, and growth on a hand-made trigger.

Each has a few settings, to be tuned on drawn streams. A rival that does not grow may be as wide as the cap from the
start; it pays rent for that like any other.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import numpy as np

from esper.benchmark.arms import RULES, WAIT, Arm, Hosts, Staging
from esper.benchmark.matching import require_widenable, widened_case
from esper.benchmark.outcomes import grown
from esper.benchmark.rivals import Look
from esper.benchmark.stream_rules import (
    DROPS,
    LOOK_AGAIN,
    LOOK_ALWAYS,
    LinearWish,
    LookAgain,
    LookAgainPolicy,
    LookAlwaysPolicy,
)
from esper.benchmark.suites import PlanError
from esper.leyline import ActionSpec, DecisionSettings, LifecycleOp, Situation, Stage
from esper.simic.env.episodes import Episodes
from esper.simic.evaluation import Player, Rewards, RulePlayer
from esper.tamiyo.actions import Actions
from esper.tamiyo.rules import RulePolicy, rule_policy
from esper.tamiyo.rules.by_layout import HEAD_START
from esper.tamiyo.rules.heuristics import DetectThenProbePolicy
from esper.tamiyo.rules.policy import Remembering, affordable, refusal
from esper.tamiyo.tracker import DropDetector
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.tasks import Instance
from esper.tolaria.upkeep import (
    ContinualBackprop,
    L2Init,
    ReDo,
    Reset,
    ShrinkAndPerturb,
    Upkeep,
    hidden_units,
)

FITTED = LookAgain(
    Look(
        epoch=1,
        schedule=grown("mixer", 1, 0),
        mean=(10.6492, 0.5322, 0.1156, 0.0373),
        scale=(0.5437, 0.2161, 0.1210, 0.0452),
        weights=(0.0027, 0.2778, -0.2669, -0.4143, 0.0398),
    ),
    drop=0.1,
)
"""Fitted on 96 drawn streams of the suite, one host each."""
# fmt: off
WISH = LinearWish(3.3334, (
    0.26375, -5.8976, 1.7591, 0.60372, -1.6017, -2.1988, 1.4024, 0.30476, 0.59654, -0.018944,
    -0.025067, -1.5718, -0.0875, 1.8374, 0.0096026, -0.25619, -0.30335,
))
# fmt: on
"""Taught by foresight on 60 drawn streams, in three rounds (`benchmarks/fit_look_always.py`)."""
_SAMPLES = 256
"""Training samples of now that units are judged by."""


class UpkeepPlayer:
    """Waits in every env, and keeps the weights of each host by rules that do not grow it.

    make  an upkeep for each host
    drop  what counts as a change of the data, for an upkeep that asks
    """

    def __init__(self, make: Callable[[], Upkeep], drop: float = 0.2) -> None:
        self._make, self._drop = make, drop
        self._kept: list[tuple[TrainedHost, Upkeep, DropDetector]] = []

    def begin(self, num_envs: int) -> None:
        """Forget earlier hosts."""
        del num_envs
        self._kept = []

    def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
        """Keep what the last epoch left, and wait."""
        del rewards
        for env_idx in range(episodes.num_envs):
            host = episodes.host(env_idx)
            assert isinstance(host, TrainedHost)  # in this process, and no toy
            self._keep(env_idx, host)
        wait = ActionSpec()
        return np.stack([episodes.encode(env_idx, wait) for env_idx in range(episodes.num_envs)])

    def _keep(self, env_idx: int, host: TrainedHost) -> None:
        if env_idx == len(self._kept) or self._kept[env_idx][0] is not host:
            upkeep = self._make()
            upkeep.begin(host.model.host, host.optimizer, seed=host.seed)
            if type(upkeep).before_step is not Upkeep.before_step:
                host.before_update = upkeep.before_step
            self._kept[env_idx : env_idx + 1] = [(host, upkeep, DropDetector(self._drop))]
            return
        _, upkeep, detector = self._kept[env_idx]
        changed = detector.noticed(host.report.validation_accuracy)
        upkeep.maintain(host.training_inputs(_SAMPLES), changed=changed)


@dataclass
class _Adapters:
    """What was noticed and done in an episode."""

    best: float | None = None
    wanted: bool = False
    """Whether a change was noticed that has no adapter yet."""
    since: int = 0
    """Epochs since the last one was noticed."""
    order: list[str] = field(default_factory=list)
    """Slots that have one, the oldest first."""


@dataclass(kw_only=True)
class AdapterPolicy(Remembering[_Adapters]):
    """Grows a small seed for each change that it notices, and fossilizes it.

    Slots are filled from the output backwards, or from the input on. When none is free, or the cap has no room, the
    oldest adapter is retired for the next one; without `replace` nothing grows any more.
    """

    drop: float = 0.2
    """How far validation accuracy must fall below its best since the last change."""
    kind: str = "lora"
    """A blueprint, or several with | between them, of which the first that is offered is taken."""
    replace: bool = True
    from_input: bool = False
    head_start: int = 0
    """Epochs from a change that is noticed to its adapter, in which the host meets the new data alone."""

    def __post_init__(self) -> None:
        DropDetector(self.drop)
        super().__init__(_Adapters)

    @property
    def decisions(self) -> DecisionSettings:
        """RETIRE is a choice where adapters are replaced."""
        return DecisionSettings(retire=self.replace)

    def act(self, situation: Situation) -> ActionSpec:
        """Tend the youngest adapter, or make the next one."""
        memory = self.memory
        detector = DropDetector(self.drop, memory.best)
        noticed = detector.noticed(situation.signals.validation_accuracy)
        memory.wanted, memory.since = noticed or memory.wanted, 0 if noticed else memory.since + 1
        memory.best = detector.best
        for slot in situation.slots:
            for op in (LifecycleOp.ADVANCE, LifecycleOp.FOSSILIZE):
                if op in situation.legal[slot.name].operations:
                    return ActionSpec(op, slot.name)
        early = not memory.wanted or memory.since < self.head_start
        if early or any(slot.stage.is_live for slot in situation.slots):
            return ActionSpec()
        return self._next(situation)

    def _next(self, situation: Situation) -> ActionSpec:
        memory = self.memory
        for slot in situation.slots if self.from_input else reversed(situation.slots):
            offered = {card.name: card for card in situation.cards[slot.name]}
            card = next((offered[kind] for kind in self.kind.split("|") if kind in offered), None)
            if card is None or not affordable(card, situation.signals):
                continue
            action = ActionSpec(LifecycleOp.GERMINATE, slot.name, card.name)
            if refusal(action, situation) is None:
                memory.wanted = False
                memory.order.append(slot.name)
                return action
        clearing = any(slot.fading or slot.stage is Stage.EMBARGOED for slot in situation.slots)
        if self.replace and memory.order and not clearing:
            retire = ActionSpec(LifecycleOp.RETIRE, memory.order[0])
            if refusal(retire, situation) is None:
                memory.order.pop(0)
                return retire
        return ActionSpec()


@dataclass(frozen=True, slots=True)
class StreamRival:
    """One rival with its settings."""

    name: str
    setting: str
    """In words; empty where there is nothing to set."""
    player: Callable[[], Player]
    wide: bool = False
    """Whether the host is as wide as the cap from the start."""

    def __str__(self) -> str:
        wide = "as wide as the cap" if self.wide else ""
        return ", ".join(part for part in (self.name, wide, self.setting) if part)


def _waiting() -> Player:
    return RulePlayer(lambda _: rule_policy(WAIT))


def _upkeeps() -> Iterator[tuple[str, str, Callable[[], Player]]]:
    for strength in (1e-4, 1e-3, 1e-2):
        yield "l2_init", f"strength {strength:g}", partial(UpkeepPlayer, partial(L2Init, strength))
    for shrink, every in ((0.02, 1), (0.1, 5), (0.3, 10)):
        make = partial(ShrinkAndPerturb, shrink, shrink, every)
        yield "shrink_and_perturb", f"{shrink:g} every {every} epochs", partial(UpkeepPlayer, make)
    for rate in (0.01, 0.05):
        make_anew = partial(ContinualBackprop, rate, 5, 0.8)
        yield "continual_backprop", f"rate {rate:g} an epoch", partial(UpkeepPlayer, make_anew)
    for threshold in (0.025, 0.1):
        yield "redo", f"threshold {threshold:g}", partial(UpkeepPlayer, partial(ReDo, threshold, 2))
    for drop in (0.15, 0.3):
        for only_last in (False, True):
            what = f"{'last layer' if only_last else 'everything'} at a drop of {drop:g}"
            yield "reset", what, partial(UpkeepPlayer, partial(Reset, only_last), drop)


def _rule(make: Callable[[], RulePolicy]) -> Player:
    return RulePlayer(lambda _: make())


def _growing() -> Iterator[tuple[str, str, Callable[[], Player]]]:
    for drop in (0.1, 0.15, 0.25):
        probing = partial(DetectThenProbePolicy, drop=drop)
        yield "detect_then_probe", f"drop {drop:g}", partial(_rule, probing)
    for kind in ("lora", "mixer"):
        for drop in (0.15, 0.25):
            policy = partial(AdapterPolicy, drop=drop, kind=kind)
            yield "adapters", f"{kind} at a drop of {drop:g}", partial(_rule, policy)
    for drop in DROPS:
        again = looking_again(replace(FITTED, drop=drop))
        yield again.name, again.setting, again.player
    yield LOOK_ALWAYS, str(WISH), partial(_rule, partial(LookAlwaysPolicy, WISH))


def looking_again(again: LookAgain) -> StreamRival:
    """The rival that looks anew after each drop, by this rule."""
    return StreamRival(LOOK_AGAIN, str(again), partial(_rule, partial(LookAgainPolicy, again)))


def stream_rivals() -> list[StreamRival]:
    """Every rival in every setting; the first never grows and has nothing to set."""
    rivals = [StreamRival(WAIT, "", _waiting), StreamRival("wide", "", _waiting, wide=True)]
    for wide in (False, True):
        rivals += [StreamRival(name, setting, player, wide) for name, setting, player in _upkeeps()]
    return rivals + [StreamRival(name, setting, player) for name, setting, player in _growing()]


TUNED = {
    "wide": "wide, as wide as the cap",
    "l2_init": "l2_init, as wide as the cap, strength 0.0001",
    "shrink_and_perturb": "shrink_and_perturb, as wide as the cap, 0.02 every 1 epochs",
    "continual_backprop": "continual_backprop, as wide as the cap, rate 0.01 an epoch",
    "redo": "redo, as wide as the cap, threshold 0.025",
    "reset": "reset, as wide as the cap, last layer at a drop of 0.3",
    "detect_then_probe": "detect_then_probe, drop 0.15",
    "adapters": "adapters, mixer at a drop of 0.25",
    LOOK_AGAIN: f"{LOOK_AGAIN}, {FITTED}",
    LOOK_ALWAYS: f"{LOOK_ALWAYS}, {WISH}",
}
"""name -> the rival in the setting that `benchmarks/study_streams.py` found best on tuning draws, in words."""

FROZEN_TUNED = {
    "reset": "reset, last layer at a drop of 0.3",
    "adapters": "adapters, lora at a drop of 0.15",
}
"""Where bodies are frozen fewer can be played, in the settings that `benchmarks/study_adapt_streams.py` found best on
three tuning draws."""

STREAM_RIVALS = tuple(name for name in TUNED if name not in RULES)
"""Arms of streams alone; on these, the rule among the tuned is played with its tuned setting."""


def frozen_rivals() -> list[StreamRival]:
    """Those that can be played where the body is frozen, in every setting."""
    rivals = []
    for drop in (0.15, 0.3):
        resetting = partial(UpkeepPlayer, partial(Reset, only_last=True), drop)
        rivals.append(StreamRival("reset", f"last layer at a drop of {drop:g}", resetting))
    for kind, from_input in product(("lora", "conv_small|mlp_small"), (False, True)):
        where = " from the input on" if from_input else ""
        for drop in (0.15, 0.25):
            policy = partial(
                AdapterPolicy, drop=drop, kind=kind, from_input=from_input, head_start=HEAD_START
            )
            setting = f"{kind}{where} at a drop of {drop:g}"
            rivals.append(StreamRival("adapters", setting, partial(_rule, policy)))
    return rivals


def played_rivals(*, frozen: bool = False) -> dict[str, StreamRival]:
    """name -> the rival as a benchmark plays it, in its tuned setting.

    frozen  on hosts whose body is frozen: fewer rivals
    """
    every = {str(rival): rival for rival in (frozen_rivals() if frozen else stream_rivals())}
    return {name: every[words] for name, words in (FROZEN_TUNED if frozen else TUNED).items()}


def require_streaming(rival: StreamRival, case: str) -> None:
    """Raise PlanError unless the rival can be played on the hosts of this instance.

    What is as wide as the cap needs a cap, and a host that can be made wider; what begins units anew needs a network
    whose layers read one another in turn; what grows a mixer needs one to be offered.
    """
    instance = Instance.parse(case)
    if instance.row.counts != "life":
        raise PlanError(f"{rival.name} is a rival on streams, and {case} is none: choose --suite stream")
    if rival.wide and instance.cap is None:
        raise PlanError(f"{rival.name} is as wide as the cap, and {case} has none")
    row = instance.row
    if rival.name in (LOOK_AGAIN, LOOK_ALWAYS) and "mixer" not in row.blueprints:
        raise PlanError(f"{rival.name} grows a mixer, and {case} offers {', '.join(row.blueprints)}")
    try:
        if rival.wide:
            require_widenable(case)
        if rival.name in ("continual_backprop", "redo"):
            hidden_units(instance.row.host(instance.load()))
    except ValueError as error:
        raise PlanError(f"{rival.name} cannot be played on {case}: {error}") from None


@contextmanager
def wide_cases(cases: Sequence[str], host_parameters: int) -> Iterator[list[str]]:
    """The same instances on hosts that have all that their caps allow from the start, while the context lasts."""
    wide: dict[str, str] = {}
    made: dict[tuple[str, int], str] = {}
    with ExitStack() as stack:
        for case in dict.fromkeys(cases):
            instance = Instance.parse(case)
            size = host_parameters + int((instance.cap or 0.0) * host_parameters)
            if (instance.task, size) in made:  # a task of that width is there already
                wide[case] = str(Instance(made[instance.task, size], instance.parameters))
                continue
            wide[case] = stack.enter_context(widened_case(case, size))
            name = wide[case].partition(":")[0]
            if name != instance.task:
                made[instance.task, size] = name
        yield [wide[case] for case in cases]


@dataclass(frozen=True, slots=True)
class StreamArm(Arm):
    """A rival with its settings, as an arm of a benchmark."""

    rival: StreamRival

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.rival.name

    @property
    def identity(self) -> str:
        return f"rival of streams: {self.rival}"

    def needs(self, instance: str, instances: Sequence[str]) -> tuple[tuple[str, int, str], ...]:
        """Waiting: added parameters are counted over its host's."""
        del instances
        return ((WAIT, 0, instance),)

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        if not self.rival.wide:
            return Staging(self.rival.player())
        bare = hosts.row(WAIT, 0, hosts.seeds[0]).host_parameters
        cases = context.enter_context(wide_cases([hosts.instance] * len(hosts.seeds), bare))
        return Staging(self.rival.player(), tuple(cases))
