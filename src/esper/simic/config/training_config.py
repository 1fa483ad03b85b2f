"""`TrainingConfig`: everything that decides a training run, flat and checked when it is made."""

from collections.abc import Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, cast

from pydantic import JsonValue, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python

from esper.leyline import TEMPOS, DecisionSettings, LifecycleOp, ObservationUnits
from esper.leyline.decisions import PLATEAU_THRESHOLD
from esper.simic.config import checks
from esper.simic.config.checks import CHECKED, ConfigError, explained, unknown_setting
from esper.simic.config.files import read_settings, write_settings
from esper.simic.config.ppo import PPOConfig, PPOSettings
from esper.simic.config.presets import preset_settings

if TYPE_CHECKING:  # what needs torch or numpy is imported where it is made, so that settings need neither
    from esper.kasmina.governor import GovernorRules
    from esper.simic.config.ppo import IQLConfig
    from esper.simic.reward import RewardConfig

DEFAULT_MINIBATCHES = 4
ENTROPY_ANNEAL_SHARE = 0.75
"""The last quarter of a run, by default, exploits what was explored."""
ANNEALED = ("lr_anneal_steps", "entropy_anneal_steps")
"""Settings whose None follows the number of rounds."""
MAY_CHANGE = frozenset(
    (
        *("rounds", "workers", "worker_timeout", "cluster", "cluster_snapshot_every"),
        "cluster_round_deadline",
        *("eval_every", "run_name", "run_directory"),
        *("run_checkpoint_every", "run_keep_checkpoints", "run_record_episodes"),
        *("run_telemetry", "run_tensorboard", "run_wandb"),
    )
)
"""Settings that a run may go on under with another value.

None changes what a round computes, but for `cluster_round_deadline`: a round that it closes learns from fewer steps.
"""
LEAST_TRAINING_EPOCHS, LEAST_HOLDING_EPOCHS = 1, 1
"""Of a seed's life, by the growth rules' defaults."""


class AnomalyKwargs(TypedDict):
    """The thresholds of `AnomalyDetector`."""

    max_ratio_threshold: float
    min_ratio_threshold: float
    min_explained_variance: float
    warmup_updates: int


@explained
@dataclass(slots=True, frozen=True, kw_only=True, config=CHECKED)
class TrainingConfig(PPOSettings):
    """One training run of a controller. `TrainingConfig.preset("demo", lr=1e-3)` starts from a known one.

    The learner's own settings (`gamma`, `lr`, ...) are inherited; all are set flat.
    """

    # What is trained on

    suite: checks.CaseText = "cpu"
    """What to train on: a suite ("cpu") or one task instance ("mnist1d:noise=0.2"); `esper tasks` lists them."""
    horizon: checks.CountOrNone = None
    """Epochs of an episode; None is the task's own."""
    settle: Literal["worth", "committed"] = "worth"
    """What the model keeps at the horizon: every seed worth its rent, or fossilised ones only."""
    first_growth: checks.CountOrZero = 0
    """Epochs that a host trains before anything may be germinated in it: until then its needs are unknown."""
    menu: checks.Menu = None
    """The only kinds of seeds that hosts are offered, such as 'mixer,depthwise'; None is all that the task has."""
    retire: checks.Flag = False
    """Whether fossils may be retired; then what each contributes is measured in every epoch, and seen."""
    decay_epochs: checks.Count = 3
    """With `retire`: epochs in a row below its rent after which a fossil counts as decayed."""
    decay_rent: checks.NotNegative = 0.01
    """With `retire`: what a fossil as large as the host must contribute in order not to decay."""
    observation_units: ObservationUnits = "absolute"
    """What the controller observes in: numbers as they are, or ratios to the host's own beginning and noise."""
    num_envs: checks.HostCount = 32
    """Hosts that grow side by side."""
    workers: checks.CountOrZero = 0
    """Processes to spread the hosts over; 0 is this process, or one for each CPU of a cluster. Same numbers."""
    worker_timeout: checks.PositiveOrNone = 1800.0
    """Seconds a worker may take for an answer; then the run ends with an error that names it. None waits for ever."""
    cluster: checks.Cluster = None
    """A Ray cluster to run workers on: 'local' starts one here, 'auto' joins that of this machine; or HOST:PORT."""
    cluster_snapshot_every: checks.CountOrZero = 0
    """Epochs between states kept of a host on a cluster, to replay it from if its node is lost; 0: from its start."""
    cluster_round_deadline: checks.PositiveOrNone = None
    """Seconds of collecting on a cluster after which a round closes, and late hosts are lost; None waits for all."""
    device: checks.Device = "cpu"
    """Where hosts and policy compute: cpu, cuda or cuda:<number>."""
    seed: checks.CountOrZero = 0
    """Rng seed of everything random in the run."""
    pool_cases: checks.Count = 64
    """Task instances drawn once to train on: few enough that each one's baseline is trained only once."""
    pool_host_seeds: checks.Count = 4
    """Rng seeds of hosts that each of them is trained with, its own ones."""
    reparametrise: checks.Flag = False
    """Draw the learning rate, width and steps an epoch of each of them anew, around its own; of drawn hosts only."""

    # The learner

    rounds: checks.Count = 500
    """Rounds of collecting a rollout and learning from it."""
    rollout_steps: checks.CountOrNone = None
    """Steps per env in a round; None is the horizon, one whole episode."""
    lr_anneal_steps: checks.CountOrZeroOrNone = 0
    """Rounds over which lr falls linearly to a tenth; None is all rounds, 0 keeps it."""
    entropy_anneal_steps: checks.CountOrZeroOrNone = None
    """Rounds over which entropy_coef goes to its floor; None is three quarters of all rounds, 0 keeps it."""
    entropy_coef_per_head: checks.HeadCoefficients = field(default_factory=dict)
    """head -> its own starting weight, instead of entropy_coef."""
    exploration_floor: checks.UnderOne = 0.0
    """Share of uniformly random legal choices mixed into the policy."""
    num_minibatches: checks.CountOrNone = None
    """Groups of envs in a pass; None is 4, or num_envs if there are fewer."""
    hidden_size: checks.Count = 128
    """Width of the policy's memory."""
    num_lstm_layers: checks.Count = 1
    """Layers of the policy's memory."""
    privileged_critic: checks.Flag = True
    """Show the critic, never the actor, the baseline now and at the end, and the gain, where the reward has one."""
    initial_op_logits: checks.OpLogits = field(default_factory=dict)
    """operation -> its logit before anything is learned, 0 where not named: under 0 it is tried seldom at first."""
    warm_start: checks.WarmStart = None
    """A rule to imitate before the first round, a controller, the file of a `PolicyNetwork`, or a run; None: none."""

    # Learning from recorded episodes, without hosts

    offline: checks.Datasets = ()
    """Data sets to learn from by implicit Q-learning, instead of hosts: files, folders, runs that recorded theirs."""
    offline_batch: checks.Count = 32
    """Whole episodes in a batch of an offline run."""
    offline_batches: checks.Count = 100
    """Batches of a round of an offline run."""
    offline_expectile: checks.Expectile = 0.8
    """Which expectile of Q over recorded actions V is: 0.5 is what was done, towards 1 the best that was done."""
    offline_beta: checks.NotNegative = 30.0
    """How sharply better actions are preferred, per standard deviation of the rewards; 0 clones what was done."""
    offline_trace: checks.Share = 0.95
    """How much of what was done later counts for what an action is worth (lambda); falls until the policy learns."""
    offline_policy_share: checks.UpToOne = 0.2
    """Share of lr's annealing, the last, in which the policy learns; before it the critics learn alone."""
    offline_balance: checks.Share = 0.5
    """How far rare actions count as much as frequent ones for Q and policy: 0 as often as they were done, 1 alike."""
    offline_target_rate: checks.UpToOne = 0.1
    """How far the slow copies of the critics move with each batch."""

    # Heads that are not learned

    freeze_style: checks.StyleOrNone = None
    """The only way seeds compose; None lets the policy choose."""
    freeze_tempo: checks.TempoOrNone = None
    """The only length of first ramps, in epochs; None lets the policy choose."""
    freeze_alpha_target: checks.AlphaTargetOrNone = None
    """The only strength that seeds are blended in to; None lets the policy choose."""
    freeze_alpha_speed: checks.AlphaSpeedOrNone = None
    """The only length of later ramps, in epochs; None lets the policy choose."""
    freeze_alpha_curve: checks.CurveOrNone = None
    """The only shape of later ramps; None lets the policy choose."""

    # Reward

    reward_family: Literal["contribution", "loss"] = "contribution"
    """What utility is measured in: validation accuracy, or validation loss."""
    reward_mode: Literal["sparse", "shaped"] = "shaped"
    """Utility at the end only, or the same with potential-based shaping on the way there."""
    reward_rent: checks.NotNegativeOrNone = None
    """Utility that added parameters cost, per host's worth of them; None is the task's own."""
    reward_control_variate: checks.Flag = True
    """Subtract the utility of the same instance and seed when nothing is grown."""
    reward_rollback_penalty: checks.AtLeastOne = 1.0
    """Paid for a host the governor took back, beside the worst product; in ranges of scores (accuracy 1, loss 3)."""

    # Watching the learner

    anomaly_max_ratio_threshold: checks.OverOne = 5.0
    """A larger probability ratio is reported: the policy moved too far."""
    anomaly_min_ratio_threshold: checks.UnderOne = 0.1
    """A smaller probability ratio is reported: choices are being abandoned."""
    anomaly_min_explained_variance: checks.AtMostOne = 0.1
    """A smaller explained variance is reported: the critic does not predict returns."""
    anomaly_warmup_updates: checks.CountOrZero = 10
    """Rounds before a poor critic is reported."""

    # Watching the hosts

    governor_divergence_factor: checks.OverOne = 3.0
    """A host is broken with a training loss over this many times that of a uniform guess."""
    governor_learned_margin: checks.NotNegative = 0.1
    """A host has learned once its accuracy was this share of the way from chance to 1."""
    governor_collapse_share: checks.NotNegative = 0.1
    """It is back at chance with at most this share left of what it was above chance at its best."""
    governor_collapse_patience: checks.Count = 2
    """Epochs in a row at chance before it is condemned."""
    governor_max_consecutive: checks.Count = 3
    """Rollbacks in a row after which a host is given up."""
    tracker_plateau_threshold: checks.NotNegative = PLATEAU_THRESHOLD
    """How much validation accuracy must rise to count as better."""

    # The run and its record

    run_name: checks.RunName = None
    """Folder of the run in run_directory; None makes one of suite, date and time."""
    run_directory: checks.Directory = Path("runs")
    """Where runs are kept."""
    run_checkpoint_every: checks.Count = 25
    """Rounds between checkpoints; the best and the last are always kept."""
    run_keep_checkpoints: checks.Count = 3
    """Checkpoints kept; older ones are deleted."""
    run_record_episodes: checks.Flag = False
    """Keep every episode in the run's folder, as a data set to learn from without hosts (`offline`)."""
    run_telemetry: Literal["off", "rounds", "full", "debug"] = "full"
    """off; rounds, episodes and anomalies; also every decision and what happens to hosts; also assertions."""
    run_tensorboard: checks.Flag = True
    """Write TensorBoard files too, unless run_telemetry is off."""
    run_wandb: checks.Flag = False
    """Send to Weights & Biases too, unless run_telemetry is off."""
    eval_every: checks.CountOrZero = 25
    """Rounds between evaluations on hosts it does not train on; 0 is never, as offline: then the last is used."""
    eval_episodes: checks.Count = 24
    """Episodes of an evaluation."""

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        life = LEAST_TRAINING_EPOCHS + (self.freeze_tempo or min(TEMPOS)) + LEAST_HOLDING_EPOCHS
        if self.horizon is not None and self.horizon < self.first_growth + life:
            raise ValueError(
                f"horizon is {self.horizon}; expected >= {self.first_growth + life}, "
                f"the epochs of the shortest life of a seed{' after first_growth' if self.first_growth else ''}"
            )
        for name in ("workers", "num_minibatches"):
            value: int | None = getattr(self, name)
            if value is not None and value > self.num_envs:
                raise ValueError(f"{name} is {value}; expected <= num_envs, which is {self.num_envs}")
        if self.cluster_round_deadline is not None and self.cluster is None:
            raise ValueError(
                f"cluster_round_deadline is {self.cluster_round_deadline:g}; expected None, since cluster is None: "
                "choose a cluster, or leave the deadline out"
            )
        for name in ("start_critic_rounds", "start_kl"):
            if getattr(self, name) and self.warm_start is None:
                raise ValueError(
                    f"{name} is {getattr(self, name)} without a warm_start; expected 0, or one to start from"
                )
        if LifecycleOp.RETIRE.name in self.initial_op_logits and not self.retire:
            raise ValueError(
                "initial_op_logits names RETIRE, which retire=False does not offer; set retire=True"
            )
        return self

    def in_one_process(self) -> Self:
        """The same settings without workers, on the CPU: to load or judge what was trained."""
        return replace(self, workers=0, cluster=None, cluster_round_deadline=None, device="cpu")

    # Made of a preset, a file or a mapping

    @classmethod
    def preset(cls, name: str, **changes: object) -> Self:
        """A known configuration with some settings changed."""
        return cls.of({**preset_settings(name), **changes})

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """From a .json, .toml or .yaml file; what it does not name is at its default."""
        path = Path(path)
        try:
            return cls.of(read_settings(path))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Self:
        """From settings by name; what is not named is at its default."""
        if not isinstance(settings, Mapping):
            raise ConfigError(f"settings are {settings!r}; expected them by name")
        known = [each.name for each in fields(cls)]
        unknown = [name for name in settings if name not in known]
        if unknown:
            raise ConfigError("; ".join(unknown_setting(name, known) for name in unknown))
        return cls(**settings)  # type: ignore[arg-type]  # checked by the class itself

    def save(self, path: Path | str) -> None:
        """Every setting, to a .json, .toml or .yaml file."""
        write_settings(Path(path), self.to_dict())

    def to_dict(self) -> dict[str, JsonValue]:
        """Every setting as plain data: `TrainingConfig.of(config.to_dict()) == config`."""
        return {each.name: to_jsonable_python(getattr(self, each.name)) for each in fields(self)}

    # Going on with a run

    def changes(self, before: "TrainingConfig") -> dict[str, str]:
        """Name of a setting that differs -> its values before and now, as text."""
        old, new = before.to_dict(), self.to_dict()
        return {name: f"{old[name]} -> {new[name]}" for name in new if old[name] != new[name]}

    def continuing(self, before: "TrainingConfig") -> Self:
        """These settings for a run that was trained under `before`.

        Annealing that follows the rounds keeps the length it had: rounds beyond them are trained at its end. Raises
        ConfigError with all that differs in what a round computes.
        """
        had = before.ppo()
        same_rounds = self.rounds == before.rounds
        kept = {
            name: getattr(before if same_rounds else had, name)
            for name in ANNEALED
            if getattr(self, name) is None
        }
        settings = replace(self, **kept)
        now = settings.ppo()
        same = {*MAY_CHANGE, *(name for name in ANNEALED if getattr(now, name) == getattr(had, name))}
        refused = [
            f"{name} {change}" for name, change in settings.changes(before).items() if name not in same
        ]
        if refused:
            raise ConfigError(
                f"a run goes on under the settings it was trained under; these differ: {', '.join(refused)}"
            )
        return settings

    # What each consumer takes

    @property
    def minibatches(self) -> int:
        """Groups of envs in a pass over a rollout."""
        return self.num_minibatches or min(DEFAULT_MINIBATCHES, self.num_envs)

    def whole_cost(self, env_steps: int | None) -> int | None:
        """Epochs of hosts behind a controller, given those of its run; None where it began with more than that.

        What recorded episodes, a rule's clone or an earlier run took is not known here.
        """
        return None if self.offline or self.warm_start is not None else env_steps

    @property
    def critic_sees_baseline(self) -> bool:
        """Whether the critic is shown what the actor cannot know."""
        return self.privileged_critic and self.reward_control_variate

    @property
    def logs_decisions(self) -> bool:
        """Whether every decision, and what happens to hosts, is recorded."""
        return self.run_telemetry in ("full", "debug")

    @property
    def decisions(self) -> DecisionSettings:
        """What the controller may decide, for environments and for the controller's card."""
        frozen = self._named("freeze_")
        return DecisionSettings(
            frozen_heads={head: value for head, value in frozen.items() if value is not None},
            first_growth=self.first_growth,
            menu=None if self.menu is None else tuple(self.menu.split(",")),
            plateau_threshold=self.tracker_plateau_threshold,
            retire=self.retire,
            decay_epochs=self.decay_epochs,
            decay_rent=self.decay_rent,
            observation_units=self.observation_units,
        )

    def ppo(self) -> PPOConfig:
        """What the agent learns by. Annealing and minibatches follow the length and width of the run."""
        shared = {each.name: getattr(self, each.name) for each in fields(PPOSettings)}
        return PPOConfig(
            **shared,
            lr_anneal_steps=annealing_steps(self.lr_anneal_steps, self.rounds),
            entropy_anneal_steps=annealing_steps(
                self.entropy_anneal_steps, self.rounds, share=ENTROPY_ANNEAL_SHARE
            ),
            entropy_coef_per_head=self.entropy_coef_per_head,
            num_minibatches=self.minibatches,
            debug=self.run_telemetry == "debug",
        )

    def iql(self) -> "IQLConfig":
        """What an offline run learns by."""
        from esper.simic.config.ppo import IQLConfig

        return IQLConfig(
            gamma=self.gamma,
            lr=self.lr,
            expectile=self.offline_expectile,
            beta=self.offline_beta,
            trace=self.offline_trace,
            balance=self.offline_balance,
            target_rate=self.offline_target_rate,
        )

    def reward(self, *, task_rent: float, task_counts: Literal["end", "life"] = "end") -> "RewardConfig":
        """What an episode is worth; `task_rent` is what `reward_rent=None` stands for."""
        from esper.simic.reward import RewardConfig

        settings = self._named("reward_")
        if self.reward_rent is None:
            settings["rent"] = task_rent
        return RewardConfig(gamma=self.gamma, counts=task_counts, **settings)

    def governor(self) -> "GovernorRules":
        """When a host counts as broken."""
        from esper.kasmina.governor import GovernorRules

        return GovernorRules(**self._named("governor_"))

    def to_anomaly_kwargs(self) -> AnomalyKwargs:
        """For `AnomalyDetector`."""
        return cast(AnomalyKwargs, self._named("anomaly_"))

    def _named(self, prefix: str) -> dict[str, Any]:
        """The settings that begin with `prefix`, by the rest of their name: what their consumer calls them."""
        names = [each.name for each in fields(self) if each.name.startswith(prefix)]
        return {name.removeprefix(prefix): getattr(self, name) for name in names}


def annealing_steps(given: int | None, rounds: int, *, share: float = 1.0) -> int:
    """Rounds that annealing takes: what was given; None is a share of all rounds, at least one. 0 is never."""
    return max(1, round(share * rounds)) if given is None else given
