"""What a Grower saves in a checkpoint, and how it goes on from one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict

from pydantic import BaseModel, ConfigDict, Json, ValidationError
from torch import Tensor

from esper.grower.deciding import Deciding
from esper.grower.history import DECISIONS, Decision, Notes, Phases, read_phases
from esper.grower.host import Averages, LoopHost
from esper.grower.judging import BestEpoch, SavedBest
from esper.grower.measuring import EpochMetrics, Gauge, Scale
from esper.grower.twin import Gain, Twin
from esper.kasmina import GrowingModel
from esper.kasmina.describing import ModelRecord, describe, plain_data
from esper.kasmina.governor import Guard
from esper.kasmina.gradients import GradientWatch
from esper.kasmina.persistence import ModelFileError, reinstate
from esper.leyline import EpochReport, LifecycleOp
from esper.leyline.errors import first_finding

FORMAT, VERSION = "esper grower", 9


class SavedGood(BaseModel):
    """The last good epoch, as a checkpoint holds it that was taken after one at chance."""

    model_config = ConfigDict(arbitrary_types_allowed=True, frozen=True)

    epoch: int
    decider: dict[str, object] | None
    """What the decider remembered; None where that cannot be saved."""
    model: Json[ModelRecord]
    tensors: dict[str, Tensor]


class SavedState(BaseModel):
    """What a checkpoint of a grower holds, checked before anything is changed."""

    model_config = ConfigDict(arbitrary_types_allowed=True, frozen=True)

    model: Json[ModelRecord]
    tensors: dict[str, Tensor]
    report: EpochReport
    last_operation: LifecycleOp
    observer: dict[str, object]
    decider: dict[str, object]
    guard: dict[str, object]
    watch: dict[str, object]
    pay: dict[str, object]
    scale: Scale
    seed_scale: Scale
    twin: dict[str, object] | None
    warned: set[str]
    """Names of the warnings that are given once."""
    notes: list[str]
    """For the next decision."""
    waiting: EpochMetrics | None
    """Of an epoch that was taken in and not decided on."""
    history: Json[tuple[Decision, ...]]
    phases: dict[str, object] | None
    """Of a run without an end."""
    best: SavedBest | None
    """Where the best epoch is kept."""
    good: SavedGood | None = None
    """Where it is not the model that is saved."""


def read_state(state: object, controller: str, *, twin: bool) -> SavedState:
    """The state that a Grower under this controller, with or without a twin, saved; else raises ValueError."""
    if not isinstance(state, Mapping):
        raise ValueError(f"the state is a {type(state).__name__}; expected what state_dict() returned")
    if state.get("format") != FORMAT or state.get("version") != VERSION:
        if "format" not in state:
            raise ValueError(
                "the state has no 'format', so grower.state_dict() did not give it: is it a model's or optimiser's? "
                "Keep grower.state_dict(), which holds both"
            )
        raise ValueError(
            f"the state has format {state.get('format')!r}, version {state.get('version')!r}; this Esper reads "
            f"{FORMAT!r}, version {VERSION}"
        )
    if state.get("controller") != controller:
        raise ValueError(
            f"the state was saved under controller {state.get('controller')!r}; this Grower has {controller!r}"
        )
    if (state.get("twin") is not None) != twin:
        saved, made = ("with", "without") if twin is False else ("without", "with")
        raise ValueError(f"the state was saved {saved} a twin; this Grower was made {made} one")
    try:
        return SavedState.model_validate(state)
    except ValidationError as error:
        raise ModelFileError(f"the saved state is damaged: {first_finding(error)}") from None


class Resuming(ABC):
    """The part of `Grower` that is saved: what it has decided, measured and remembered."""

    model: GrowingModel
    history: tuple[Decision, ...]
    """What was decided after each epoch, with why; of a run without an end, after the last `DECISIONS_KEPT`."""
    _host: LoopHost
    _gauge: Gauge
    _guard: Guard
    _watch: GradientWatch
    _deciding: Deciding
    _notes: Notes
    _averages: Averages
    _twin: Twin | None
    _best: BestEpoch | None
    _phases: Phases | None
    """Of a run without an end."""
    _gain: Gain | None
    _finished: bool
    _waiting: EpochMetrics | Decision | None
    """The epoch that was taken in, or what it led to."""
    _removed: dict[str, str]
    """slot -> blueprint of the seeds that finish() took out"""
    _returned: int | None
    """The epoch that finish() went back to."""

    @property
    @abstractmethod
    def controller(self) -> str:
        """The name of the controller or rule that decides."""

    def _begin(self, *, endless: bool) -> None:
        """Nothing has been trained, decided or finished."""
        self.history, self._waiting = (), None
        self._phases = Phases() if endless else None
        self._finished = False
        self._removed, self._returned, self._gain = {}, None, None

    def state_dict(self) -> dict[str, object]:
        """Everything, for your checkpoint: the model with its seeds, the optimiser, the controller's memory.

        Loadable with `weights_only=True`. A scheduler's and a scaler's state are their own, as always.
        """
        return {
            "format": FORMAT,
            "version": VERSION,
            "controller": self.controller,
            **plain_data(describe(self.model)),
            "report": asdict(self._host.report),
            **self._deciding.state_dict(),
            "guard": self._guard.state_dict(),
            "watch": self._watch.state_dict(),
            "scale": asdict(self._gauge.scale),
            "seed_scale": asdict(self._gauge.seed_scale),
            "twin": None if self._twin is None else self._twin.state_dict(),
            "warned": sorted(self._notes.warned),
            "notes": list(self._notes.pending),
            "waiting": asdict(self._waiting) if isinstance(self._waiting, EpochMetrics) else None,
            "history": DECISIONS.dump_json(self.history).decode(),
            "phases": None if self._phases is None else self._phases.state_dict(),
            "best": None if self._best is None else self._best.state_dict(),
            "good": self._good_state() if self._guard.in_doubt else None,
        }

    def _good_state(self) -> dict[str, object]:
        """What a rollback would go back to, where that is not the model as it is."""
        good = self._guard.describe_good()
        assert good is not None  # or nothing would be in doubt
        return {"epoch": self._deciding.good_epoch, "decider": self._deciding.remembered, **plain_data(good)}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken, in a Grower made the same way; it may have grown, and be finished.

        It restores the optimiser too, whose own state_dict could not be loaded before the seeds are there.
        """
        saved = read_state(state, self.controller, twin=self._twin is not None)
        if (
            saved.good is not None
        ):  # the good epoch passes through the model, whose tensors the state may hold
            own = {name: tensor.clone() for name, tensor in saved.tensors.items()}
            saved = saved.model_copy(update={"tensors": own})
        reinstate(self.model, saved.model, saved.tensors)
        self._watch.take()  # what was trained and not decided on is gone
        self.history, self._host.report = saved.history, saved.report
        if self._phases is not None:
            self._phases = read_phases(saved.phases, saved.history)
        try:
            self._deciding.load_state_dict(
                last_operation=saved.last_operation,
                observer=saved.observer,
                decider=saved.decider,
                pay=saved.pay,
            )
            self._remember_good(saved)
            self._watch.load_state_dict(saved.watch)
            if self._twin is not None and saved.twin is not None:
                self._twin.load_state_dict(saved.twin)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise ModelFileError(f"the saved state is damaged: {error}; make the Grower anew") from error
        for parameter in self.model.parameters():
            parameter.grad = None
        self._waiting, self._notes.warned, self._notes.pending = saved.waiting, saved.warned, saved.notes
        self._gauge.scale, self._gauge.seed_scale = saved.scale, saved.seed_scale
        self._finished = False
        self._removed, self._returned, self._gain = {}, None, None
        if self._best is not None:
            self._best.load(saved.best)
            if saved.best is None and saved.report.epoch:
                self._notes.warn(
                    f"the state of epoch {saved.report.epoch} was saved without keep_best=True: the best epoch is "
                    "sought from here on"
                )
        self._averages.update()

    def _remember_good(self, saved: SavedState) -> None:
        """Let the governor go on, with what a rollback would go back to."""
        good = saved.good
        if good is None:
            self._guard.load_state_dict(saved.guard)
            self._deciding.begin_from(saved.report.epoch)
            return
        reinstate(self.model, good.model, good.tensors)
        self._guard.load_state_dict(saved.guard, as_it_is=False)
        self._deciding.begin_from(good.epoch, good.decider)
        reinstate(self.model, saved.model, saved.tensors)
