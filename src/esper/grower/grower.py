"""`esper.Grower`: growth in a training loop of your own, one decision an epoch."""

import inspect
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, SupportsFloat, Unpack

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from esper.grower import checks
from esper.grower import history as reporting
from esper.grower.adapting import Adapting
from esper.grower.deciding import WAIT, Deciding, bare_linear, nothing_suits, usual_rule
from esper.grower.history import DECISIONS_KEPT, Decision, Notes, described
from esper.grower.host import Averages, LoopHost, compiled_graphs, growing, topology
from esper.grower.judging import BestEpoch, Judge, remove_unseen, restore_best, settle_loop
from esper.grower.losses import Loss
from esper.grower.measuring import (
    Gauge,
    Mode,
    Validate,
    as_call,
    check,
)
from esper.grower.resuming import Resuming
from esper.grower.twin import Gain, TrainStep, measure_gain, twin_of
from esper.grower.validating import Metric
from esper.kasmina import GrowingModel, coalitions
from esper.kasmina.drawing import write_figure
from esper.kasmina.governor import GovernorRules, Guard
from esper.kasmina.gradients import GradientWatch
from esper.kasmina.probing import ExampleInput
from esper.kasmina.replicas import recognise
from esper.kasmina.schedules import Scheduler
from esper.kasmina.wrapping import WrapOptions
from esper.leyline import LifecycleOp, Settle
from esper.leyline.utility import rent_due
from esper.tamiyo.controller import Controller
from esper.tamiyo.deciders import Decider, decider
from esper.tamiyo.rules import RulePolicy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Grower(Resuming, Adapting):
    """Lets a model grow while it trains, under a controller that is asked once an epoch.

        grower = esper.Grower(
            model, slots=["layer*"], optimizer=optimizer, example_input=x, validate=val_loader
        )
        for epoch in range(epochs):
            train_one_epoch(grower.model, optimizer)  # your loop, unchanged
            decision = grower.step(train_loss=loss)   # once an epoch
        plain = grower.finish()                       # settled, exported, an ordinary module

    model             any nn.Module, which is hooked and not copied; or a GrowingModel (then without slots). For
                      several processes DistributedDataParallel(module), or a module after fully_shard
    slots             submodule names or patterns where it may grow; `*` stays within a part of a dotted name
    optimizer         any that updates each parameter by itself, over the model's parameters (docs/optimisers.md)
    example_input     a tensor, a tuple of arguments or a dict of keyword arguments, batch first
    controller        a shipped controller's name, a rule's name (`probe_and_keep`, `plateau`, ...), a controller's
                      folder, a `Controller`, or a policy of your own with `reset()` and `act(situation)`; by default
                      the rule `by_layout`, and `frozen_spread` where nothing up to the last slot is trained
    validate          a loader of (inputs, targets) or dict batches; or a function of the model that returns
                      {"validation_loss": ..., "validation_accuracy": ...}, either or both, or with a mode
                      {"validation_metric": ...}. It is tried at once. With it, each seed is measured (it is one set:
                      the controller observes, and `finish` settles, by all of it)
    loss              of a loader's batch: (outputs, targets) -> the mean, or a tensor with samples first, or
                      (total, count). By default cross-entropy of classes, squared error of float targets, or the
                      model's own loss of a dict
    metric            of all of a loader: (outputs, targets) -> a number; or an object with reset(), update(outputs,
                      targets) and compute(). It is then what growth is judged by
    mode              "min" or "max": whether less or more of the metric is better
    twin              a step of your training, (model, optimizer, batch) -> loss. With it the model that does not grow
                      is trained too: write `loss = grower.train(batch)` in your loop. See `gain` and `finish`
    epochs            how many there will be; controllers look at the time that is left
    scheduler         learning rate scheduler(s) of the optimiser, kept right across growth
    scaler            the GradScaler, if there is one
    parameter_budget  parameters that may be added in all; None is no limit
    rent              what utility pays for doubling the host's parameters, when the run is settled
    training_samples  how many training samples there are; controllers look at it
    accumulate        batches whose gradients you add up before a step
    governor          when to go back to the last good epoch; None never does, and keeps no second copy in memory
    keep_best         keep the epoch that validates best for `finish(best=True)`: a copy of weights and seeds in the
                      CPU's memory
    generator         lets a controller sample instead of taking its first choice
    seed_lr_multiplier   learning rate of a seed over that of the part it grows at: 3, or 1 on a frozen host
    wrapping          layout, causal, blueprints, rules, seed, events, isolation_penalty, as `esper.wrap` takes them
    """

    def __init__(
        self,
        model: nn.Module,
        slots: Sequence[str] | None = None,
        *,
        optimizer: Optimizer,
        example_input: ExampleInput | None = None,
        controller: str | os.PathLike[str] | Controller | RulePolicy | None = None,
        validate: Validate | None = None,
        loss: Loss | None = None,
        metric: Metric | None = None,
        mode: Mode | None = None,
        twin: TrainStep | None = None,
        epochs: int | None = None,
        scheduler: Scheduler | Sequence[Scheduler] | None = None,
        scaler: GradScaler | None = None,
        parameter_budget: int | None = None,
        rent: float = 0.01,
        training_samples: int | None = None,
        accumulate: int = 1,
        governor: GovernorRules | None = GovernorRules(),  # noqa: B008  frozen
        keep_best: bool = False,
        generator: torch.Generator | None = None,
        seed_lr_multiplier: float | None = None,
        **wrapping: Unpack[WrapOptions],
    ) -> None:
        checks.refuse_unknown(wrapping, inspect.signature(Grower.__init__).parameters)
        checks.require_numbers(epochs, training_samples, parameter_budget, accumulate, rent)
        checks.require_kinds(
            model=model, scaler=scaler, governor=governor, keep_best=keep_best, generator=generator
        )
        bare, replicas = (model, model.replicas) if isinstance(model, GrowingModel) else recognise(model)
        checks.refuse_strangers(bare, replicas)
        checks.require_as_many(replicas, validate)
        self._gauge = Gauge(as_call(validate, loss=loss, metric=metric, mode=mode), mode)
        seed = wrapping.get("seed", 0)
        who = None if controller is None else decider(controller, seed=seed, generator=generator)
        if self._gauge.validate is not None:
            check(bare, self._gauge.validate, mode)
        self._twin = twin_of(
            model,
            optimizer,
            twin,
            validate=self._gauge.validate,
            scaled=scaler is not None,
            keep_best=keep_best,
            processes=replicas.size,
        )
        self.epochs, self.rent, self.parameter_budget = epochs, rent, parameter_budget
        self._optimizer = optimizer
        self._begin(endless=epochs is None)
        with ExitStack() as undo:  # a Grower that is refused leaves nothing on the model and the optimiser
            self.model = growing(model, slots, example_input, wrapping, accumulate, undo)
            who = who or decider(usual_rule(self.model))
            if parameter_budget is not None:
                checks.require_room(self.model.slots, parameter_budget, who.settings.menu)
            self.model.attach(optimizer, scheduler, scaler=scaler, seed_lr_multiplier=seed_lr_multiplier)
            undo.callback(self.model.detach)
            self._guard = Guard(self.model, governor)
            self._watch = GradientWatch(self.model, optimizer, before_first=self._guard.begin)
            undo.callback(self._watch.detach)
            self._host = LoopHost(self.model, optimizer, training_samples)
            self._best = BestEpoch(self.model) if keep_best else None
            self._put_together(who)
            checks.require_alike(
                replicas,
                slots=", ".join(self.model.slots),
                controller=self.controller,
                epochs=epochs,
                mode=mode,
            )
            self._voice_doubts(who)
            undo.pop_all()

    def _put_together(self, who: Decider) -> None:
        """Make what judges an epoch and what decides on it."""
        if who.settings.observation_units == "ratios":  # to what it began at
            self._host.take(self._gauge.begun(self.model))
        self._deciding = Deciding(
            who,
            self._host,
            epochs=self.epochs,
            rent=self.rent,
            parameter_budget=self.parameter_budget,
            bounded=self._gauge.mode is None,
        )
        self._graphs_before = compiled_graphs()  # what was compiled before does not concern this model
        self._notes = Notes(silent=self.model.replicas.rank > 0)
        self._judge = Judge(
            self._host,
            self._gauge,
            self._guard,
            self._watch,
            self._notes,
            twin=self._twin,
            best=self._best,
            weigh_fossils=who.settings.retire,
        )
        self._averages = Averages(self.model)

    def _voice_doubts(self, who: Decider) -> None:
        """Warn of what makes it unlikely that anything grows."""
        doubts = (
            checks.untrained_part(self.model.host, self._optimizer),
            checks.too_short(who, self.epochs, first_decision=1),
            checks.nothing_on_the_menu(who, self._host.cards),
            nothing_suits(who.name, self._deciding.observer.situation(0)),
            bare_linear(who.name, self.model),
        )
        for doubt in doubts:
            if doubt is not None:
                self._notes.warn(doubt)

    @property
    def controller(self) -> str:
        """The name of the controller or rule that decides."""
        return self._deciding.name

    @property
    def epoch(self) -> int:
        """Epochs trained so far."""
        return self._host.report.epoch

    # Once a batch, with a twin

    def train(self, batch: object) -> object:
        """Train the model and its twin on a batch; returns what `twin=` returned for the model, detached."""
        if self._twin is None:
            raise ValueError(
                "train() trains the model beside its twin, and there is none: make the Grower with twin="
            )
        return self._twin.train(self.model, self._optimizer, batch)

    # Once an epoch

    def step(
        self,
        *,
        train_loss: SupportsFloat | None = None,
        validation_loss: SupportsFloat | None = None,
        train_accuracy: SupportsFloat | None = None,
        validation_accuracy: SupportsFloat | None = None,
        validation_metric: SupportsFloat | None = None,
    ) -> Decision:
        """Take in the epoch that was just trained, decide, and prepare the next. Accuracies are 0 to 1.

        With `validate` the validation metrics may be left out: they are then measured here. `validation_metric` is
        any number, better in the direction of the Grower's `mode`.
        """
        self.take_in(
            train_loss=train_loss,
            train_accuracy=train_accuracy,
            validation_loss=validation_loss,
            validation_accuracy=validation_accuracy,
            validation_metric=validation_metric,
        )
        return self.decide()

    def take_in(self, **numbers: SupportsFloat | None) -> None:
        """The first half of `step`: measure and judge the epoch. The model stays as it was trained, unless it broke.

        A checkpoint between the halves holds the network that was measured; whoever goes on calls `decide`.
        """
        if self._finished:
            raise RuntimeError(
                "step() after finish(): what finish() returned would not grow with this model. To go on, "
                "load_state_dict() a state from before, or make a new Grower over what finish() returned"
            )
        judged = self._judge.take_in(self.epoch + 1, numbers)
        if judged.idle:
            reason = "nothing was trained since the last decision"
            score = self._gauge.scale.score(judged.metrics)
            self._waiting = self._deciding.decision(judged.metrics, score, WAIT, reason)
        elif judged.verdict is not None:
            self._deciding.record()
            reason = "the governor went back to the last good epoch"
            found = judged.verdict.value
            undone = self._deciding.undo(self.history)
            if undone:
                words = ", ".join(f"{described(each.action)} (epoch {each.epoch})" for each in undone)
                self._notes.add(f"undone with it: {words}")
            self._deciding.last_operation = LifecycleOp.WAIT
            if self._averages.begin_anew_where_broken():
                self._notes.warn(
                    "an average that follows the model had taken in NaN or Inf, and begins anew with the weights "
                    "that the governor went back to"
                )
            self._waiting = self._file(
                self._deciding.decision(judged.metrics, None, WAIT, reason, rolled_back=found)
            )
        else:
            self._waiting = judged.metrics

    @property
    def undecided(self) -> bool:
        """Whether an epoch was taken in that nothing has been decided on."""
        return self._waiting is not None

    def decide(self) -> Decision:
        """The second half of `step`: decide on the epoch that was taken in, and prepare the next."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            raise RuntimeError("decide() has no epoch to decide on: call take_in() first, or step() for both")
        if isinstance(waiting, Decision):
            return waiting
        self._deciding.record()
        if self._guard.in_doubt:
            self._deciding.doubt()
        score = self._gauge.scale.score(waiting)
        choice, reason = self._deciding.choose(score, self._notes, epochs=self.epochs)
        return self._conclude(self._deciding.decision(waiting, score, choice, reason))

    def _conclude(self, decision: Decision) -> Decision:
        """Carry a decision out, begin the next epoch, and file the decision."""
        self._guard.before_decision(self.epoch)
        if self.epoch != self.epochs:  # after the last epoch none comes that could show it
            before = topology(self.model)
            self.model.execute(decision.action)
            self.model.tick()
            if decision.action.op is LifecycleOp.GERMINATE:
                for name, warning in self._averages.warnings_at_birth():
                    self._notes.warn(warning, once=name)
            self._deciding.last_operation = decision.action.op
            if before != topology(self.model) and compiled_graphs() > self._graphs_before:
                self._notes.add("the model changed: torch.compile compiles it anew at its next forward")
        if self._guard.content:
            self._guard.remember()
            self._deciding.begin_from(self.epoch)
        return self._file(decision)

    def _file(self, decision: Decision) -> Decision:
        """Let the averages follow, and keep the decision with what was noted meanwhile."""
        self._averages.update()
        decision = replace(decision, notes=self._notes.take())
        self.history = (*self.history, decision)
        if self._phases is not None:
            self._phases.record(decision)
            self.history = self.history[-DECISIONS_KEPT:]
        return decision

    # What is reported

    def explain(self) -> str:
        """What was done and why, and where that has led; of a run without an end also phase by phase."""
        lines = reporting.explain(
            self.model,
            self.history,
            self.controller,
            self._removed,
            scale=self._gauge.scale,
            returned=self._returned,
            phases=[] if self._phases is None else self._phases.lines(),
        )
        return lines if self._twin is None else f"{lines}\n{self._twin.story(self._gain)}"

    def gain(self) -> Gain:
        """Validation of the model as it is now, of the settled one after `finish`, over that of its twin.

        The interval is that of other samples like these. What grew was chosen by these, which flatters it: judge it
        by samples of your own that it has not seen.
        """
        if self._twin is None or self._gauge.validate is None:
            raise ValueError(
                "a gain is measured against a twin, and there is none: make the Grower with twin="
            )
        rent = rent_due(self.rent, self.model.added_parameters, self.model.host_parameters)
        return self._gain or measure_gain(
            self.model, self._twin.model, self._gauge.validate, self._gauge.seed_scale, rent=rent
        )

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """The score against its forecast, and the life of every seed; with a path, also as a file (.png, .svg)."""
        title = f"controller {self.controller}, {self.epoch} epochs"
        figure = reporting.plot(self.history, title, scale=self._gauge.scale)
        if path is not None:
            write_figure(figure, path)
        return figure

    # The end, and going on later

    def follow(self, average: AveragedModel) -> None:
        """Let an average of the model (EMA, SWA), made after the Grower, grow with it: seeds come and go in both."""
        self._averages.follow(average)

    def finish(self, *, settle: Settle = "worth", best: bool = False) -> nn.Module:
        """Settle, and give back an ordinary module that needs no esper.

        Seeds that are not finished are removed, then each whose removal raises validation utility now. Without
        `validate`, what is HOLDING or FOSSILIZED stays. With `settle="committed"` just fossilised seeds do.

        With `best=True` it is the network of the epoch that validated best, as it was then and not settled
        (`keep_best=True`, which no twin goes with); the model goes back to it, but for seeds that its output did not
        show. A twin that does better on validation, rent counted, is given back in its place.
        """
        coalitions.require_settle(settle)
        self.model.replicas.align()
        if best:
            self._returned = restore_best(self._best, settle)
            self._removed = remove_unseen(self.model)
            self._guard.keep_decision()
            return self._handed_over()
        if not self.epoch:
            self._notes.warn(
                "finish() without a step(): nothing was decided. Call step() once an epoch", once="never"
            )
        if not self._watch.steps:
            self._take_back()
        before = {name: slot.seed.blueprint_name for name, slot in self.model.slots.items() if slot.seed}
        settle_loop(self.model, self._gauge.validate, self._gauge.seed_scale, self.rent, settle)
        self._removed |= {name: kind for name, kind in before.items() if not self.model.slots[name].seed}
        return self._handed_over()

    def _take_back(self) -> None:
        """Undo the last decision, which was never trained with, and note that."""
        epoch = self._guard.take_back()
        decided = next((each for each in self.history if each.epoch == epoch and not each.rolled_back), None)
        if decided is not None and decided.action.op is not LifecycleOp.WAIT:
            last = self.history[-1]
            note = f"finish() took back what was never trained with: {described(decided.action)}"
            self.history = (*self.history[:-1], replace(last, notes=(*last.notes, note)))

    def _handed_over(self) -> nn.Module:
        """The model as it is now, as an ordinary module; or its twin, where that is better."""
        self._finished = True
        self._averages.update()
        self._gain = None
        if self._twin is not None:
            self._gain = self.gain()
            if not self._gain.pays:
                return self._twin.export()
        return self.model.export()
