"""Episodes of growth in a world, and one step of all of them, from top to bottom.

    decode -> apply, tick, train, validate, govern, settle at the horizon (the world's step) -> reward -> observe

Both Gymnasium environments are thin shells around this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from esper.leyline import (
    CAUSAL_TABLE,
    HEAD_NAMES,
    ActionOutcome,
    ActionSpec,
    BaselineCurve,
    Baselines,
    Beginning,
    DecisionSettings,
    EpisodeFinished,
    HostProtocol,
    HostsLost,
    HostState,
    HostStep,
    IllegalChoice,
    Settle,
    Settling,
    Situation,
    SpreadWorld,
    World,
    operations,
)
from esper.simic.env.accounts import Accounts
from esper.simic.env.cases import (
    AnyHost,
    CasePool,
    CaseSource,
    Episode,
    HostSource,
    ParallelEnvState,
    as_source,
    case_generator,
)
from esper.simic.reward import RewardComponents, RewardConfig, RewardTelemetry
from esper.simic.timing import Stopwatch
from esper.tamiyo.actions import Actions, GrowthSpace, decode, encode, illegal_choice
from esper.tamiyo.masks import LegalChoices
from esper.tamiyo.observation import Observer
from esper.tolaria.tasks import data_changes


class IllegalActionError(ValueError):
    """An action that the mask forbids, where illegal actions are errors."""

    def __init__(self, env_idx: int, choice: IllegalChoice) -> None:
        self.env_idx, self.choice = env_idx, choice
        super().__init__(
            f"env {env_idx}: head {choice.head!r} chose {choice.value}, which is illegal now; "
            f"legal: {', '.join(choice.legal)}"
        )

    def __reduce__(self) -> tuple[type["IllegalActionError"], tuple[int, IllegalChoice]]:
        return type(self), (self.env_idx, self.choice)


OnIllegal = Literal["raise", "noop"]
Flags = NDArray[np.bool_]
Observation = dict[str, NDArray[np.float32]]
WAIT = ActionSpec()
WAITED = ActionOutcome(WAIT, WAIT)
STATE_VERSION = 7
HOSTS, BASELINES = "hosts", "baselines"
"""Parts of the time: hosts begin, train, are validated and settled; baseline curves are looked up, or trained."""
ANY_HOST_SEED = 2**31
"""Host seeds are drawn below this, unless a pool of them is asked for."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of one step, before any env begins a new episode. Arrays and tuples have an entry for each env."""

    components: RewardComponents
    terminated: Flags
    lost: Flags
    """The worker died; the step is not to be learned from, and the episode is over."""
    outcomes: tuple[ActionOutcome, ...]
    shown_rewards: NDArray[np.float64]
    """(env,) what the actor is shown of its reward: a deployed one has a forecast where the reward has a baseline."""
    privileged: NDArray[np.float32] | None
    """(env, PRIVILEGED) what only the critic may see of the state that the step led to; None if it does not look."""
    episodes: tuple[int, ...]
    """Number of the episode that the step was in, from 0."""
    epochs: tuple[int, ...]
    """Number of the epoch that the step trained, from 1."""
    accuracies: tuple[float | None, ...]
    """Validation accuracy after the step, 0..1; None if unknown, or if the host was lost or condemned."""
    finished: Mapping[int, EpisodeFinished]
    """The episodes that ended, by env."""

    @property
    def ended(self) -> Flags:
        """(env,) whether the episode is over."""
        ended: Flags = self.terminated | self.lost
        return ended


class StepWatcher(Protocol):
    """Sees every step of `Episodes`, such as to record it."""

    def before(self, actions: Actions) -> None:
        """What was asked for, (env, head), before it is done."""

    def after(self, result: StepResult) -> None:
        """What came of it, before any env begins a new episode."""


class EpisodeOptions(TypedDict, total=False):
    """Options of `Episodes` that do not depend on what runs them."""

    on_illegal: OnIllegal
    """"raise", or "noop": WAIT is executed, and the outcome says what was wrong."""
    settle: Settle
    """What the final model keeps: what is worth its rent, or only what was committed."""
    decisions: DecisionSettings
    """What may be decided, and when validation is on a plateau."""
    host_seeds: int
    """Host seeds are drawn below this number, except from a `CasePool`, whose cases have their own."""
    shown_reward: RewardConfig
    """The reward that a controller learned by, and is shown (against a forecast); the same as `reward` by default."""


class Episodes:
    """`num_envs` running episodes: their cases, hosts, rewards and observations.

    cases      a suite to draw from, or cases; each env draws with a generator of its own
    horizon    epochs of an episode
    baselines  curves that the reward subtracts; not needed with control_variate=False

    The other options are those of `EpisodeOptions`.
    """

    def __init__(
        self,
        world: World,
        space: GrowthSpace,
        cases: CaseSource | Sequence[str] | str,
        *,
        num_envs: int,
        horizon: int,
        reward: RewardConfig = RewardConfig(),  # noqa: B008  frozen
        baselines: Baselines | None = None,
        on_illegal: OnIllegal = "raise",
        settle: Settle = "worth",
        decisions: DecisionSettings = DecisionSettings(),
        host_seeds: int = ANY_HOST_SEED,
        shown_reward: RewardConfig | None = None,
    ) -> None:
        if host_seeds < 1:
            raise ValueError(f"host_seeds is {host_seeds}; expected >= 1")
        if horizon < 1:
            raise ValueError(f"horizon is {horizon}; expected >= 1")
        if on_illegal not in get_args(OnIllegal):
            raise ValueError(
                f"on_illegal is {on_illegal!r}; expected one of {', '.join(get_args(OnIllegal))}"
            )
        if settle not in get_args(Settle):
            raise ValueError(f"settle is {settle!r}; expected one of {', '.join(get_args(Settle))}")
        if reward.control_variate and baselines is None:
            raise ValueError("baselines is None: give some, or set control_variate=False in the reward")
        self.world, self.space = world, space.under(decisions)
        source = as_source(cases)
        self._hosts: HostSource = source if isinstance(source, CasePool) else AnyHost(source, host_seeds)
        self.num_envs, self.horizon, self.reward = num_envs, horizon, reward
        self.on_illegal, self.settle = on_illegal, settle
        self.telemetry = RewardTelemetry()
        self.stopwatch = Stopwatch()
        """Seconds spent in the parts of a step; a training loop adds its own parts."""
        self.choices = LegalChoices(self.space.action_layout)
        self.baselines = baselines if reward.control_variate else None
        self.decisions = decisions
        self.observer = Observer(self.space, num_envs, decisions=decisions)
        self._envs = [ParallelEnvState() for _ in range(num_envs)]
        self.accounts = Accounts(reward, num_envs, horizon=horizon, shown_reward=shown_reward or reward)
        """What every host is worth: to the reward, the critic and the actor."""
        self.critic_looks = False
        """Whether steps report what only the critic may see, for which baselines are trained to their end at once."""
        self.watcher: StepWatcher | None = None
        """Sees every step; None if nobody looks."""

    # Beginning

    def seed(self, env_idx: int, seed: int) -> None:
        """Decide what this env's episodes will be, from the next one on."""
        env = self._envs[env_idx]
        env.generator, env.begun = case_generator(seed), 0

    def begin(self, env_idx: int, *, case: str | None = None, host_seed: int | None = None) -> None:
        """A new episode, of a drawn case and host seed unless they are given."""
        self.begin_many([self.draw(env_idx, case=case, host_seed=host_seed)])

    def draw(self, env_idx: int, *, case: str | None = None, host_seed: int | None = None) -> Beginning:
        """What an env is to begin; its generator moves on whether case and host seed are given or not."""
        rng = self._envs[env_idx].generator
        if rng is None:
            raise RuntimeError(f"env {env_idx} was never seeded: call reset(seed=...) first")
        drawn_case, drawn_seed = self._hosts.draw_host(rng)
        return Beginning(
            env_idx, drawn_case if case is None else case, drawn_seed if host_seed is None else host_seed
        )

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        """New episodes in several envs, whose baselines and hosts are then made at once where that is possible."""
        curves: Sequence[BaselineCurve | None] = [None] * len(beginnings)
        if self.baselines is not None:
            with self.stopwatch.part(BASELINES):
                curves = self.baselines.curves([(case, host_seed) for _, case, host_seed in beginnings])
        for (_, case, _), curve in zip(beginnings, curves, strict=True):
            if curve is not None and len(curve.losses) <= self.horizon:
                raise ValueError(
                    f"the baseline curve of {case!r} has {len(curve.losses)} epochs with epoch 0; a horizon of "
                    f"{self.horizon} needs {self.horizon + 1}"
                )
        try:
            self._begin_hosts(beginnings)
        except HostsLost:  # they died just now; the world has others by the time we ask again
            self._begin_hosts(beginnings)
        for (env_idx, case, host_seed), curve in zip(beginnings, curves, strict=True):
            host = self.world.host(env_idx)
            self._envs[env_idx].begin(case, host_seed, curve)
            self.accounts.begin(env_idx, host, curve)

    # Seeing

    def observe(self) -> Observation:
        """Of all envs, in memory that the next call overwrites."""
        return self.observer.observe()

    def masks(self) -> NDArray[np.bool_]:
        """(env, layout.width), in memory that the next call overwrites."""
        for env_idx in range(self.num_envs):
            self.episode(env_idx)
        return self.observer.masks()

    def situation(self, env_idx: int) -> Situation:
        """One env in words, for a rule."""
        self.episode(env_idx)
        return self.observer.situation(env_idx)

    def encode(self, env_idx: int, action: ActionSpec) -> Actions:
        """An action in words as one choice per head, (head,); style, tempo and the like as frozen, where they are."""
        chosen = encode(action, self.space, self.host(env_idx).slot_config)
        for name, choice in self.decisions.frozen_choices.items():
            head = HEAD_NAMES.index(name)
            relevant = name != "op" and name in CAUSAL_TABLE[action.op]
            if relevant and self.choices.row(chosen, self.masks()[env_idx], head)[choice]:
                chosen[head] = choice
        return chosen

    def host(self, env_idx: int) -> HostProtocol:
        """The host of the running episode."""
        self.episode(env_idx)
        return self.world.host(env_idx)

    def episode(self, env_idx: int) -> Episode:
        """The running episode; raises before the first reset."""
        episode = self._envs[env_idx].episode
        if episode is None:
            raise RuntimeError(f"env {env_idx} has not begun: call reset() first")
        return episode

    def is_over(self, env_idx: int) -> bool:
        """Whether this episode has had its last step."""
        return (
            self.episode(env_idx).epoch >= self.horizon or self.host(env_idx).report.rolled_back is not None
        )

    @property
    def seeded(self) -> bool:
        """Whether every env knows what its next episodes will be."""
        return all(env.generator is not None for env in self._envs)

    # Stepping

    def step(self, actions: Actions) -> StepResult:
        """Execute one action (env, head) in every env, train an epoch, and settle what reaches the horizon."""
        outcomes = self._decode(actions)
        if self.watcher is not None:
            self.watcher.before(actions)
        running = [self.episode(env_idx) for env_idx in range(self.num_envs)]
        epochs = tuple(episode.epoch + 1 for episode in running)
        settling = Settling(self.reward.rent, self.settle, self.reward.family)
        steps = [
            HostStep(
                env_idx,
                outcome.executed,
                settling if epochs[env_idx] == self.horizon else None,
                self.decisions.retire,
            )
            for env_idx, outcome in enumerate(outcomes)
        ]
        lost = np.zeros(self.num_envs, dtype=np.bool_)
        with self.stopwatch.part(HOSTS), self.stopwatch.part("epoch"):
            try:
                self.world.step_many(steps)
            except HostsLost as loss:
                lost[list(loss.host_idxs)] = True
            if isinstance(self.world, SpreadWorld):
                self.stopwatch.add(self.world.take_worker_seconds())
        rolled_back, terminated = np.zeros_like(lost), np.zeros_like(lost)
        alive = {env_idx: self.world.host(env_idx) for env_idx in map(int, np.flatnonzero(~lost))}
        for env_idx, host in alive.items():
            episode, op = running[env_idx], outcomes[env_idx].executed.op
            episode.epoch += 1
            episode.operations[op] += 1
            rolled_back[env_idx] = host.report.rolled_back is not None
            terminated[env_idx] = rolled_back[env_idx] or episode.epoch == self.horizon
            self.observer.record(env_idx, host, op)
        with self.stopwatch.part(BASELINES):  # as far as they are not there yet
            components = self.accounts.close_epoch(alive, terminated, rolled_back)
        components.values[:, lost] = 0.0
        self.telemetry.add(components, ~lost)
        for episode, reward in zip(running, components.total.tolist(), strict=True):
            episode.episode_return += reward
        reports = [self.world.host(env_idx).report for env_idx in range(self.num_envs)]
        condemned = lost | rolled_back
        result = StepResult(
            components,
            terminated,
            lost,
            outcomes,
            shown_rewards=self.accounts.shown.copy(),
            privileged=self.accounts.privileged() if self.critic_looks else None,
            episodes=tuple(episode.number for episode in running),
            epochs=epochs,
            accuracies=tuple(
                None if gone else report.validation_accuracy
                for gone, report in zip(condemned, reports, strict=True)
            ),
            finished={
                env_idx: self.finished(env_idx, lost=bool(lost[env_idx]))
                for env_idx in map(int, np.flatnonzero(terminated | lost))
            },
        )
        if self.watcher is not None:
            self.watcher.after(result)
        return result

    def finished(self, env_idx: int, *, lost: bool) -> EpisodeFinished:
        """The running episode as it ends now; its round is for the training loop to fill in."""
        episode, host = self.episode(env_idx), self.world.host(env_idx)
        report = host.report
        kept = not lost and report.rolled_back is None
        utility = gain = control_accuracy = None
        if kept:
            utility, over_baseline = self.accounts.utility(env_idx)
            if episode.baseline is not None:
                gain, control_accuracy = over_baseline, episode.baseline.accuracies[episode.epoch]
        elif not lost and episode.baseline is not None:
            gain = self.accounts.gain_of_condemned(env_idx)
        return EpisodeFinished(
            round=None,
            env=env_idx,
            episode=episode.number,
            case=episode.case,
            host_seed=episode.host_seed,
            epochs=episode.epoch,
            utility=utility,
            gain=gain,
            validation_accuracy=report.judged[1] if kept else None,
            control_accuracy=control_accuracy,
            validation_loss=report.judged[0] if kept else None,
            added_parameters=host.added_parameters if kept else None,
            episode_return=episode.episode_return,
            operations={op.name: episode.operations[op] for op in operations(retire=self.decisions.retire)},
            illegal_actions=episode.illegal_actions,
            rolled_back=None if lost else report.rolled_back,
            lost=lost,
            observed_accuracy=report.validation_accuracy if kept else None,
            seeds_settled=report.seeds_settled if kept else 0,
            parameter_budget=None if lost else host.parameter_budget,
            changes=data_changes(episode.case) or None,
        )

    # Going on later

    def state_dict(self) -> dict[str, object]:
        """Everything, mid-episode: plain data and what the world gives, loadable with `weights_only=True`."""
        hosts = self.world.snapshot(range(self.num_envs))
        return {**self._terms(), "envs": [self._env_state(env_idx, host) for env_idx, host in hosts.items()]}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken; what does not fit is refused by name, before anything changes."""
        for name, value in self._terms().items():
            if state.get(name) != value:
                raise ValueError(
                    f"the saved environments have {name} {state.get(name)!r}; these have {value!r}"
                )
        envs = state["envs"]
        if not isinstance(envs, Sequence) or len(envs) != self.num_envs:
            raise ValueError(f"the saved state is not that of {self.num_envs} environments")
        self.world.restore({env_idx: saved["host"] for env_idx, saved in enumerate(envs)})
        for env_idx, saved in enumerate(envs):
            self._load_env(env_idx, saved)

    def _terms(self) -> dict[str, object]:
        """What a saved state must agree on with the episodes that load it."""
        return {
            "version": STATE_VERSION,
            "slot_ids": list(self.space.slot_config.slot_ids),
            "blueprints": list(self.space.blueprints),
            "horizon": self.horizon,
            "settle": self.settle,
            "retire": self.decisions.retire,
            **({} if self.space.units == "absolute" else {"observation_units": self.space.units}),
            "reward": asdict(self.reward),
            "shown_reward": asdict(self.accounts.shown_reward),
        }

    def _env_state(self, env_idx: int, host: HostState) -> dict[str, object]:
        return {
            **self._envs[env_idx].state_dict(),
            "accounts": self.accounts.state_dict(env_idx),
            "host": host,
            "observer": self.observer.state_dict(env_idx),
        }

    def _load_env(self, env_idx: int, saved: Mapping[str, object]) -> None:
        observer, accounts = saved["observer"], saved["accounts"]
        assert isinstance(accounts, Mapping)
        assert isinstance(observer, Mapping)
        host = self.world.host(env_idx)
        self.observer.load_state_dict(env_idx, host, observer)
        self._envs[env_idx].load_state_dict(saved)
        self.accounts.load_state_dict(env_idx, host, self.episode(env_idx).baseline, accounts)

    # Helpers

    def _begin_hosts(self, beginnings: Sequence[Beginning]) -> None:
        with self.stopwatch.part(HOSTS), self.stopwatch.part("begin"):
            self.world.begin_many(beginnings)
        for env_idx, _, _ in beginnings:
            self.observer.begin(env_idx, self.world.host(env_idx), horizon=self.horizon)

    def _decode(self, actions: Actions) -> tuple[ActionOutcome, ...]:
        """What each env asks of its host, and what is to be executed there."""
        expected = (self.num_envs, self.space.action_layout.head_count)
        if actions.shape != expected:
            raise ValueError(f"actions have shape {actions.shape}; expected {expected} (env, head)")
        masks = self.masks()
        allowed = self.choices.allowed(actions, masks)
        if self.on_illegal == "raise":
            for wrong in map(int, np.flatnonzero(~allowed)):
                choice = illegal_choice(actions[wrong], masks[wrong], self.space)
                assert choice is not None
                raise IllegalActionError(wrong, choice)
        outcomes = []
        for env_idx, (op, fine) in enumerate(zip(actions[:, 0].tolist(), allowed.tolist(), strict=True)):
            if not fine:
                outcome = self._illegal(env_idx, actions[env_idx], masks[env_idx])
            elif op == 0:  # WAIT, which most steps are
                outcome = WAITED
            else:
                host = self.world.host(env_idx)
                asked = decode(actions[env_idx], self.space, host.slot_config, host.cards)
                outcome = ActionOutcome(asked, asked)
            outcomes.append(outcome)
        return tuple(outcomes)

    def _illegal(self, env_idx: int, action: Actions, mask: Flags) -> ActionOutcome:
        self.episode(env_idx).illegal_actions += 1
        host = self.world.host(env_idx)
        try:
            asked = decode(action, self.space, host.slot_config, host.cards)
        except ValueError:  # a slot or blueprint that this host does not have: there are no words for it
            asked = WAIT
        return ActionOutcome(asked, WAIT, illegal_choice(action, mask, self.space))
