"""One event of every kind, for the page about events; and a query that uses it."""

from collections.abc import Mapping
from types import MappingProxyType

from esper.leyline import (
    HEAD_NAMES,
    NOWHERE,
    AnomalyRaised,
    CheckpointSaved,
    Curve,
    DecisionTaken,
    EpisodeFinished,
    EvaluationFinished,
    Event,
    HostRolledBack,
    LifecycleOp,
    NonFiniteSeedOutput,
    Place,
    RoundFinished,
    RunFinished,
    RunStarted,
    SeedFading,
    SeedGerminated,
    Stage,
    StageChanged,
    Style,
)
from esper.nissa.event_file import Record, place_of

_BEGAN = 1_750_000_000.0
_OPERATIONS = {
    "WAIT": 410,
    "GERMINATE": 88,
    "SET_ALPHA_TARGET": 12,
    "PRUNE": 41,
    "FOSSILIZE": 39,
    "ADVANCE": 50,
}
_REWARD = {
    "final_score": 0.0,
    "final_rent": 0.0,
    "final_control": 0.0,
    "potential_after": 0.0625,
    "potential_before": -0.03125,
    "rollback": 0.0,
}
_EVENTS: tuple[Event, ...] = (
    RunStarted(name="digits-1", esper="0.1.0"),
    SeedGerminated(slot="blocks.1", blueprint="conv_light", style=Style.LINEAR_ADD, parameters=184),
    StageChanged(slot="blocks.1", before=Stage.TRAINING, after=Stage.BLENDING, operation=LifecycleOp.ADVANCE),
    SeedFading(slot="blocks.1", alpha=0.75, epochs=3),
    NonFiniteSeedOutput(slot="blocks.1", stage=Stage.TRAINING),
    HostRolledBack(
        host=3, case="mnist1d:size=1000", epoch=9, verdict="validation loss exploded", rollbacks=1
    ),
    DecisionTaken(
        round=4,
        env=3,
        episode=7,
        epoch=2,
        op=LifecycleOp.PRUNE,
        slot="blocks.1",
        blueprint=None,
        style=None,
        tempo=None,
        alpha_target=None,
        alpha_speed=3,
        alpha_curve=Curve.COSINE,
        illegal=None,
        contribution=-0.0125,
        value=0.25,
        log_prob=-2.5,
        reward=0.03125,
        reward_components=_REWARD,
        validation_accuracy=0.8125,
        stages={"blocks.0": "DORMANT", "blocks.1": "HOLDING", "blocks.2": "TRAINING"},
        alphas={"blocks.1": 1.0, "blocks.2": 0.0},
        contributions={"blocks.1": -0.0125},
        probabilities={
            "op": {"WAIT": 0.5, "GERMINATE": 0.25, "PRUNE": 0.25},
            "slot": {"blocks.1": 1.0},
            "alpha_speed": {"0": 0.5, "3": 0.5},
            "alpha_curve": {"linear": 0.25, "cosine": 0.75},
        },
        observation={"host.time_left": 0.9, "host.budget_left": None, "blocks.1.alpha": 1.0},
        added_parameters=2221,
    ),
    EpisodeFinished(
        round=4,
        env=3,
        episode=7,
        case="mnist1d:size=1000",
        host_seed=12345,
        epochs=20,
        utility=0.8125,
        gain=0.0625,
        validation_accuracy=0.828125,
        control_accuracy=0.75,
        validation_loss=0.53125,
        added_parameters=1508,
        episode_return=0.09375,
        operations={
            "WAIT": 14,
            "GERMINATE": 2,
            "SET_ALPHA_TARGET": 0,
            "PRUNE": 1,
            "FOSSILIZE": 1,
            "ADVANCE": 2,
        },
        illegal_actions=0,
        rolled_back=None,
        lost=False,
        observed_accuracy=0.8359375,
        seeds_settled=1,
        parameter_budget=2852,
    ),
    RoundFinished(
        round=4,
        env_steps=2560,
        seconds=32.5,
        env_epochs_per_second=19.6875,
        episodes=32,
        lost_episodes=0,
        mean_return=0.09375,
        mean_gain=0.0625,
        mean_accuracy=0.828125,
        mean_control_accuracy=0.75,
        policy_loss=-0.0125,
        value_loss=0.125,
        entropy=2.25,
        entropy_by_head={
            **dict.fromkeys(HEAD_NAMES),
            "op": 1.25,
            "slot": 0.75,
            "blueprint": 2.0,
            "alpha_speed": 1.25,
        },
        approx_kl=0.0078125,
        clip_fraction=0.0625,
        ratio_max=1.75,
        ratio_min=0.5,
        explained_variance=0.625,
        grad_norm=0.375,
        learning_rate=3e-4,
        entropy_coef=0.045,
        minibatches_applied=8,
        minibatches_skipped=0,
        had_non_finite=False,
        kl_stopped=False,
        operations=_OPERATIONS,
        reward_components={**_REWARD, "total": 0.03125},
        host_seconds=30.5,
        seconds_by_part={"collect": 31.0, "collect/step": 30.75, "collect/step/hosts": 30.5, "learn": 1.25},
        peak_memory_bytes=734003200,
        entropy_coef_by_head={
            **dict.fromkeys(HEAD_NAMES),
            "op": 0.045,
            "slot": 0.045,
            "blueprint": 0.045,
            "alpha_speed": 0.045,
        },
    ),
    AnomalyRaised(
        round=4,
        name="ratio_explosion",
        value=7.5,
        threshold=5.0,
        detail="largest ratio 7.5 > 5: the policy moved too far",
        advice="Lower the learning rate, the epochs per update or target_kl.",
    ),
    EvaluationFinished(
        round=4,
        env_steps=2560,
        policy="learned",
        suite="cpu",
        episodes=64,
        mean_return=0.0625,
        mean_utility=0.78125,
        mean_gain=0.046875,
        gain_low=0.03125,
        gain_high=0.0625,
        mean_accuracy=0.796875,
    ),
    CheckpointSaved(round=4, reason="periodic", path="checkpoints/round-000004.pt", score=0.046875),
    RunFinished(status="finished", reason=None, rounds=4, env_steps=2560, seconds=131.5),
)
_HOST_PLACE = Place(round=4, env=3, episode=7, epoch=2)
_HOSTS_OWN = ("seed_germinated", "stage_changed", "seed_fading", "non_finite_seed_output", "host_rolled_back")
EXAMPLES: Mapping[str, Record] = MappingProxyType(
    {
        event.kind: Record(
            _BEGAN + number, place_of(event, _HOST_PLACE if event.kind in _HOSTS_OWN else NOWHERE), event
        )
        for number, event in enumerate(_EVENTS)
    }
)
"""kind -> one such record, in the order in which a run could tell them."""

QUERIES: Mapping[str, str] = MappingProxyType(
    {
        "run_started": "select run, fields->>'esper' as esper from events where kind = 'run_started'",
        "seed_germinated": "select blueprint, count(*) as seeds, avg(parameters) as parameters from seeds "
        "group by blueprint order by seeds desc",
        "stage_changed": "select fields->>'before' as left_stage, fields->>'after' as entered, count(*) as times "
        "from events where kind = 'stage_changed' group by all order by times desc",
        "seed_fading": "select env, episode, epoch, fields->>'alpha' as alpha from events where kind = 'seed_fading'",
        "non_finite_seed_output": "select fields->>'slot' as slot, count(*) as times from events "
        "where kind = 'non_finite_seed_output' group by slot",
        "host_rolled_back": "select fields->>'verdict' as verdict, count(*) as times from events "
        "where kind = 'host_rolled_back' group by verdict",
        "decision_taken": "select epoch, count(*) filter (op = 'GERMINATE') as births, avg(value) as value "
        "from decisions group by epoch order by epoch",
        "episode_finished": "select instance, avg(gain) as gain, count(*) as episodes from episodes "
        "where not lost group by instance order by gain desc",
        "round_finished": "select round, mean_gain, entropy_by_head['op'] as op_entropy, "
        "operations['PRUNE'] as prunes from rounds order by round",
        "anomaly_raised": "select name, count(*) as times, max(value) as worst, any_value(advice) as advice "
        "from anomalies group by name",
        "evaluation_finished": "select env_steps, policy, mean_gain, gain_low, gain_high from evaluations "
        "order by env_steps",
        "checkpoint_saved": "select round, fields->>'path' as path from events "
        "where kind = 'checkpoint_saved' and fields->>'reason' = 'best'",
        "run_finished": "select run, standing, last_round, seconds from runs where standing <> 'running'",
    }
)
"""kind -> SQL over the tables of `esper.karn.sql`."""
