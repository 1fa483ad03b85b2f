"""Environments by the name of a suite or a task instance: the one place that knows which world runs what."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from inspect import signature
from typing import Any, Unpack

import numpy as np
import torch

from esper.kasmina.governor import GovernorRules
from esper.leyline import Baselines, Beginning, HostSinks, World
from esper.leyline.errors import nearest
from esper.leyline.utility import Counts
from esper.simic.config.checks import MOST_HOSTS, ConfigError
from esper.simic.env.cases import CaseList, CaseSource
from esper.simic.env.episodes import EpisodeOptions, Episodes, OnIllegal
from esper.simic.env.growth_env import GrowthEnv, GrowthVectorEnv
from esper.simic.reward import RewardConfig
from esper.tamiyo.actions import GrowthSpace
from esper.tolaria.engine.population import Population
from esper.tolaria.tasks import Instance, Task, all_tasks, suite, suite_names, task
from esper.tolaria.tasks.drawn import REPARAMETRISED, reparametrised
from esper.tolaria.worlds.baselines import BaselineCurves, train_by_workers
from esper.tolaria.worlds.cluster.connecting import require_cluster
from esper.tolaria.worlds.engine import EngineWorld
from esper.tolaria.worlds.processes import ProcessWorld
from esper.tolaria.worlds.remote import PATIENCE_SECONDS, RemoteWorld
from esper.tolaria.worlds.toy.host import ToyBaselines, ToyWorld
from esper.tolaria.worlds.toy.instance import TOY_SUITES
from esper.tolaria.worlds.worker import WorldFactory

TOY_HORIZON, TOY_RENT = 20, 0.01
MOST_EPOCHS = 1_000_000
"""Of an episode."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything a suite needs to become an environment."""

    world: World
    num_hosts: int
    baselines: Baselines
    cases: CaseSource
    space: GrowthSpace
    horizon: int
    rent: float
    counts: Counts = "end"
    """What counts of an episode: its product, or the life."""
    close: Callable[[], None] | None = None
    """Stops the workers, where there are any."""

    def episodes(self, *, reward: RewardConfig | None = None, **options: Unpack[EpisodeOptions]) -> Episodes:
        """One episode per host; the default reward is shaped, on the terms of the task, over the baseline."""
        return Episodes(
            self.world,
            self.space,
            self.cases,
            num_envs=self.num_hosts,
            horizon=self.horizon,
            reward=RewardConfig(rent=self.rent, counts=self.counts) if reward is None else reward,
            baselines=self.baselines,
            **options,
        )

    @contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """What fails inside, such as building on this, leaves no processes behind."""
        try:
            yield
        except BaseException:
            if self.close is not None:
                self.close()
            raise


@dataclass(frozen=True, slots=True)
class Workers:
    """Where hosts live: in this process, in others, or on a cluster."""

    workers: int = 0
    """Processes, or actors of the cluster; 0 is none, or on a cluster one for each CPU (GPU) that it has."""
    cluster: str | None = None
    """"local", "auto", or HOST:PORT of the head node of a Ray cluster; None is this machine without Ray."""
    timeout: float | None = PATIENCE_SECONDS
    """Seconds that a worker may take for an answer; None waits for ever."""
    snapshot_every: int = 0
    """Epochs between the states that are kept of a host on a cluster, to replay it from; 0 replays whole episodes."""

    @property
    def here(self) -> bool:
        """Whether hosts live in this process."""
        return not self.workers and self.cluster is None

    def spread(
        self, factory: WorldFactory, num_hosts: int, *, device: str = "cpu", events: HostSinks | None = None
    ) -> RemoteWorld[Any]:
        """A world over these workers."""
        if self.cluster is None:
            return ProcessWorld(
                factory, num_hosts=num_hosts, workers=self.workers, events=events, timeout=self.timeout
            )
        require_cluster(self.cluster, device)
        from esper.tolaria.worlds.cluster.world import ClusterWorld

        return ClusterWorld(
            factory,
            num_hosts=num_hosts,
            workers=self.workers,
            cluster=self.cluster,
            device=device,
            events=events,
            timeout=self.timeout,
            snapshot_every=self.snapshot_every,
        )


@dataclass(frozen=True, slots=True)
class SuiteCases:
    """The instances that a suite draws to train on."""

    name: str

    def draw(self, rng: np.random.Generator) -> str:
        """One instance, as text."""
        return str(suite(self.name).draw(rng))


@dataclass(frozen=True, slots=True)
class ReparametrisedCases:
    """The instances of a source, each with its learning rate, width and steps an epoch drawn anew around its own."""

    source: CaseSource

    @property
    def name(self) -> str:
        """That of the source."""
        return self.source.name

    def draw(self, rng: np.random.Generator) -> str:
        """One instance, as text; the source draws what it would have drawn without."""
        (own,) = rng.spawn(1)
        return str(reparametrised(Instance.parse(self.source.draw(rng)), own))


def require_reparametrisable(name: str) -> None:
    """Raise ConfigError unless every task of a suite has the parameters that are drawn anew."""
    cases = () if name in TOY_SUITES else _engine_cases(name)[1]
    tasks = [task(Instance.parse(case).task) for case in cases]
    fixed = [row.name for row in tasks if not REPARAMETRISED.keys() <= row.parameters.keys()]
    if fixed or not tasks:
        raise ConfigError(
            f"reparametrise is True, and {', '.join(fixed) or name} has no {', '.join(REPARAMETRISED)} to draw; "
            "expected False, or a suite such as 'hosts'"
        )


def use_one_thread() -> None:
    """One torch thread: hosts are small, so threads cost time, and how they split sums is in the last bits."""
    torch.set_num_threads(1)


def make_world(
    name: str,
    num_hosts: int,
    *,
    device: str = "cpu",
    workers: Workers = Workers(),  # noqa: B008  frozen
    horizon: int | None = None,
    governor: GovernorRules = GovernorRules(),  # noqa: B008  frozen
    events: HostSinks | None = None,
) -> Setting:
    """The world that runs a suite or a task instance, with `num_hosts` hosts, here or over workers.

    horizon   epochs of an episode; None is the task's own
    governor  what counts as broken; the toy's hosts do not break
    events    where the events of each host are emitted; the toy's hosts have none

    From here on this process computes with one torch thread, as workers do.
    """
    use_one_thread()
    _require_counts(name, num_hosts=num_hosts, workers=workers.workers, horizon=horizon)
    if name in TOY_SUITES:
        return _toy(name, num_hosts, device=device, workers=workers, horizon=horizon)
    source, examples = _engine_cases(name)
    epochs, rent, counts = _terms_of(source.name, examples)
    horizon, space = epochs if horizon is None else horizon, _engine_space(examples)
    if workers.here:
        world = EngineWorld(num_hosts, device, governor=governor, events=events)
        baselines = BaselineCurves(horizon, device=device)
        return Setting(world, num_hosts, baselines, source, space, horizon, rent, counts)
    factory = partial(EngineWorld, device=device, governor=governor)
    spread = workers.spread(factory, num_hosts, device=device, events=events)
    shared = BaselineCurves(horizon, device=device, trainer=partial(train_by_workers, spread))
    return Setting(spread, num_hosts, shared, source, space, horizon, rent, counts, spread.close)


def _require_counts(name: object, *, num_hosts: object, workers: object, horizon: object) -> None:
    """Raise ConfigError for a suite that is no text, or counts that cannot be."""
    if not isinstance(name, str):
        raise ConfigError(f"suite is {name!r}; expected the name of a suite, or a task instance")
    asked = (
        ("num_envs", num_hosts, 1, MOST_HOSTS),
        ("workers", workers, 0, MOST_HOSTS),
        ("horizon", 1 if horizon is None else horizon, 1, MOST_EPOCHS),
    )
    for what, count, least, most in asked:
        if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= most:
            raise ConfigError(f"{what} is {count!r}; expected a whole number from {least} to {most:,}")


def require_suite(name: str) -> None:
    """Raise ConfigError unless this is a suite, or a task instance whose data can be loaded."""
    suites, tasks = [*suite_names(), *TOY_SUITES], [row.name for row in all_tasks()]
    if name in suites:
        return
    first = name.partition(":")[0]
    if first in suites and first not in tasks:
        raise ConfigError(
            f"suite is {name!r}, and suites have no parameters, as their instances are drawn; "
            f"expected {first!r} alone, or an instance of a task, such as 'mnist1d:noise=0.1'"
        )
    if first not in tasks:
        raise ConfigError(
            f"suite is {name!r}; expected a suite ({', '.join(suites)}) or an instance of a task "
            f"({', '.join(tasks)}){nearest(first, [*suites, *tasks])}"
        )
    try:
        instance = Instance.parse(name)
        data = instance.load()  # kept in this process for the run that follows
        with torch.random.fork_rng(devices=[]):
            instance.row.host(data)  # whose weights may be files that are not there
    except (ValueError, OSError) as error:
        raise ConfigError(f"suite is {name!r}: {error}") from error


def require_device(device: str, suite: str, *, offline: bool = False) -> None:
    """Raise ConfigError unless the hosts of a suite (offline: a learner without any) can train on this device."""
    if device == "cpu":
        return
    if device.partition(":")[0] != "cuda":
        raise ConfigError(f"device is {device!r}; expected cpu, cuda or cuda:<number>")
    if suite in TOY_SUITES and not offline:
        raise ConfigError(f"device is {device!r}; the toy has nothing to compute there, expected 'cpu'")
    if not torch.cuda.is_available():
        raise ConfigError(f"device is {device!r}, and torch finds no CUDA device; see `esper doctor`")


def device_of_hosts(device: str, suite: str) -> str:
    """Where the hosts of a run live whose learner is on `device`: the toy's compute nothing."""
    return "cpu" if suite in TOY_SUITES else device


def make_env(
    suite: str,
    num_envs: int = 1,
    *,
    device: str = "cpu",
    workers: int = 0,
    cluster: str | None = None,
    horizon: int | None = None,
    governor: GovernorRules = GovernorRules(),  # noqa: B008  frozen
    reward: RewardConfig | None = None,
    worker_timeout: float | None = PATIENCE_SECONDS,
    cluster_snapshot_every: int = 0,
    render_mode: str | None = None,
    **options: Unpack[EpisodeOptions],
) -> GrowthVectorEnv:
    """A vector environment over a suite ("cpu") or a task instance ("mnist1d:noise=0.2").

    workers  processes to spread the hosts over, or actors of a cluster; 0 runs them here, or on a cluster in as many
             as it has CPUs. With some, the calling script needs an `if __name__ == "__main__":`
    cluster  a Ray cluster to run the hosts on: "local" starts one, "auto" joins that of this machine; or HOST:PORT
    horizon  epochs of an episode; None is the task's own
    governor  what counts as a broken host
    reward   what a step pays; by default shaped, with the task's rent, against the baseline
    worker_timeout  seconds that a worker may take for an answer; None waits for ever
    cluster_snapshot_every  epochs between the states that are kept of a host on a cluster, to replay it from if its
             worker is lost; 0 replays its whole episode
    options  those of `EpisodeOptions`

    Sets torch to one thread, here as in the workers, so that the numbers are the same wherever hosts train.
    """
    _require_options(make_env, suite, device, reward, options)
    setting = make_world(
        suite,
        num_envs,
        device=device,
        workers=Workers(workers, cluster, worker_timeout, cluster_snapshot_every),
        horizon=horizon,
        governor=governor,
    )
    with setting.closed_on_failure():
        episodes = setting.episodes(reward=reward, **options)
        return GrowthVectorEnv(episodes, render_mode=render_mode, on_close=setting.close)


def make_single_env(
    suite: str,
    *,
    device: str = "cpu",
    horizon: int | None = None,
    governor: GovernorRules = GovernorRules(),  # noqa: B008  frozen
    reward: RewardConfig | None = None,
    render_mode: str | None = None,
    on_illegal: OnIllegal = "noop",
    **options: Any,
) -> GrowthEnv:
    """One environment over a suite or a task instance; its options are as `make_env` has them."""
    _require_options(make_single_env, suite, device, reward, options)
    setting = make_world(suite, 1, device=device, horizon=horizon, governor=governor)
    return GrowthEnv(
        setting.episodes(reward=reward, on_illegal=on_illegal, **options), render_mode=render_mode
    )


def _require_options(
    maker: Callable[..., object], suite: str, device: str, reward: object, options: Mapping[str, object]
) -> None:
    """Raise ConfigError for what an environment cannot be made with, in the words of its maker's options."""
    if isinstance(suite, str):  # else it is refused with the counts
        require_device(str(device), suite)
    if reward is not None and not isinstance(reward, RewardConfig):
        raise ConfigError(
            f"reward is {reward!r}; expected a RewardConfig, such as RewardConfig(mode='sparse')"
        )
    known = _options_of(maker)
    for name in options:
        if name not in known:
            several = "; esper.make_env, which makes several environments, has it"
            hint = several if name in _options_of(make_env) else nearest(name, known)
            raise ConfigError(f"there is no option {name!r}; there are {', '.join(known)}{hint}")


def _options_of(maker: Callable[..., object]) -> list[str]:
    parameters = signature(maker).parameters.values()
    own = [each.name for each in parameters if each.name != "suite" and each.kind is not each.VAR_KEYWORD]
    return list(dict.fromkeys((*own, *EpisodeOptions.__annotations__)))


def make_registered_vector_env(num_envs: int, suite: str, **options: Any) -> GrowthVectorEnv:
    """What `gymnasium.make_vec` calls; as tolerant of illegal actions as the single environment."""
    return make_env(suite, num_envs, **{"on_illegal": "noop", **options})


# The engine


def _engine_cases(name: str) -> tuple[CaseSource, tuple[str, ...]]:
    """What a suite or a task instance draws from, and a case of every task in it."""
    if name in suite_names():
        return SuiteCases(name), _examples(name)
    tasks = [row.name for row in all_tasks()]
    if name.partition(":")[0] not in tasks:
        suites = ", ".join([*TOY_SUITES, *suite_names()])
        known = nearest(name, [*TOY_SUITES, *suite_names(), *tasks])
        raise ValueError(
            f"no suite is named {name!r}; there are {suites}. Tasks are {', '.join(tasks)}{known}"
        )
    case = str(Instance.parse(name))
    return CaseList((case,), name=case), (case,)


@cache
def _examples(name: str) -> tuple[str, ...]:
    """Cases whose hosts have every slot and blueprint of a suite's: those it names, or one of each of its tasks."""
    rng, drawn = np.random.default_rng(0), suite(name)
    if drawn.covering:
        return tuple(map(str, drawn.covering))
    cases = [*drawn.held_out, *(drawn.draw(rng) for _ in range(100))]
    return tuple(str(case) for case in {case.task: case for case in cases}.values())


def _terms_of(name: str, examples: tuple[str, ...]) -> tuple[int, float, Counts]:
    """Epochs, rent and what counts, of the tasks of a suite, which must agree on them."""
    rows = [Instance.parse(case).row for case in examples]
    terms = {(row.epochs, row.rent, row.counts) for row in rows}
    if len(terms) > 1:
        epochs, rents, counted = (sorted({term[place] for term in terms}) for place in range(3))
        raise ValueError(
            f"the tasks of {name} differ in epochs {epochs}, rent {rents} or what counts {counted}"
        )
    return terms.pop()


def _engine_space(cases: tuple[str, ...]) -> GrowthSpace:
    return _space_of(cases, tuple(task(Instance.parse(case).task) for case in cases))


@lru_cache(maxsize=32)
def _space_of(cases: tuple[str, ...], _rows: tuple[Task, ...]) -> GrowthSpace:
    """Of the hosts of these cases; built once while the rows of their tasks are the same ones."""
    population = Population(len(cases))
    return GrowthSpace.covering([population.begin(index, case, 0) for index, case in enumerate(cases)])


# The toy


def _toy(
    name: str,
    num_hosts: int,
    *,
    device: str,
    workers: Workers,
    horizon: int | None,
) -> Setting:
    if device != "cpu":
        raise ValueError(f"device is {device!r}; the toy has nothing to compute there, expected 'cpu'")
    source = TOY_SUITES[name]
    horizon = TOY_HORIZON if horizon is None else horizon
    baselines, space = ToyBaselines(horizon), _toy_space(max(source.slots))
    if workers.here:
        return Setting(ToyWorld(num_hosts), num_hosts, baselines, source, space, horizon, TOY_RENT)
    spread = workers.spread(ToyWorld, num_hosts)
    return Setting(spread, num_hosts, baselines, source, space, horizon, TOY_RENT, close=spread.close)


def _toy_space(slots: int) -> GrowthSpace:
    world = ToyWorld(1)
    world.begin_many([Beginning(0, f"toy:draw=0,slots={slots}", 0)])
    return GrowthSpace.covering([world.host(0)])
