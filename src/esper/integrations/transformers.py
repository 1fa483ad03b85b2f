"""Hugging Face Transformers: a callback that lets the Trainer's model grow, a decision at every evaluation."""

import inspect
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.hooks import RemovableHandle
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME

from esper.grower import Grower
from esper.grower.measuring import VALIDATED
from esper.grower.validating import LoaderValidation
from esper.integrations.callback import (
    GROWTH,
    GrowerOptions,
    HasGrower,
    HostLoads,
    host_part,
    on_device,
    require_growth,
    scaler_of,
    with_host,
    without_host,
)
from esper.kasmina import WrapError
from esper.kasmina.probing import ExampleInput
from esper.leyline import Settle


class GrowthCallback(HasGrower, TrainerCallback):
    """Grows at every evaluation (`eval_strategy="epoch"`), from the metrics that it gives.

        growth = GrowthCallback(slots=["resnet.encoder.stages.*"], example_input={"pixel_values": x})
        trainer = Trainer(model, args, train_dataset=..., eval_dataset=..., callbacks=[growth])
        trainer.train()
        plain = growth.finish()

    Seeds are measured on the evaluation set, a pass for each live one, unless `validate` says otherwise
    (`validate=None`: not at all). The growth is saved in the Trainer's checkpoints (in `optimizer.pt`), so that
    `train(resume_from_checkpoint=...)` goes on with it, and `load_best_model_at_end` brings back the network of the
    best evaluation with the seeds it had. `Trainer.save_model` writes the weights of seeds too, which
    `from_pretrained` of a plain model leaves out with a warning: save what `finish()` gives.

    slots          names or patterns of the model's submodules
    example_input  keyword arguments, arguments or a tensor
    validation_accuracy, validation_metric   the evaluation's names for them, if `compute_metrics` gives them; the
                   second is used where there is a `mode`
    options        those of `esper.Grower`; optimizer, scheduler, scaler, accumulation and epochs are the trainer's
    """

    def __init__(
        self,
        slots: Sequence[str],
        example_input: ExampleInput,
        *,
        validation_loss: str = "eval_loss",
        validation_accuracy: str = "eval_accuracy",
        validation_metric: str | None = None,
        **options: Unpack[GrowerOptions],
    ) -> None:
        self._slots, self._example, self._options = list(slots), example_input, options
        self._validation_loss, self._validation_accuracy = validation_loss, validation_accuracy
        self._validation_metric = validation_metric
        self._training = False
        self._batches: Iterable[object] | None = None
        self._evaluated_at = 0
        """The Trainer's step of the last evaluation."""
        self._saving: RemovableHandle | None = None
        """On the optimiser, while training."""
        self._loads: HostLoads | None = None
        """On the model, while training to go back to the best evaluation."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Make the Grower, and bring it to where the checkpoint was that is being resumed."""
        self._unhook()
        model, optimizer, scheduler = (kwargs.get(name) for name in ("model", "optimizer", "lr_scheduler"))
        _refuse(args)
        # Accelerate wraps both; growth needs what is inside.
        inner, schedule = (
            getattr(optimizer, "optimizer", optimizer),
            getattr(scheduler, "scheduler", scheduler),
        )
        assert isinstance(model, nn.Module)
        assert isinstance(inner, Optimizer)
        growth = inner.state.pop(GROWTH, None)  # type: ignore[call-overload]
        if state.global_step and growth is None:
            raise WrapError(
                f"the Trainer resumes at step {state.global_step} from a checkpoint that holds no growth: it was "
                "saved without this callback, or with save_only_model. Resume one that was saved with it, or load "
                "the weights into the model and train from the start"
            )
        options: GrowerOptions = {
            "validate": self._measured,
            **self._options,
        }
        if options["validate"] == self._measured:  # what they measure is measured there
            options["loss"] = options["metric"] = None
        self._grower = Grower(
            model,
            self._slots,
            optimizer=inner,
            example_input=on_device(self._example, next(model.parameters()).device),
            scheduler=schedule if isinstance(schedule, LRScheduler) else None,
            scaler=scaler_of(optimizer),
            epochs=_evaluations(args, state),
            accumulate=args.gradient_accumulation_steps,
            **options,
        )
        self._training, self._evaluated_at = True, 0
        if growth is not None:
            self._restore(growth)
        self._saving = inner.register_state_dict_post_hook(self._add_growth)
        if args.load_best_model_at_end:  # which is after the decision to stop
            self._loads = HostLoads(model, when=lambda: control.should_training_stop and self._is_trained())

    def _is_trained(self) -> bool:
        """Whether a Trainer with this callback is training. No event says when that breaks off; the stack does."""
        frame = inspect.currentframe()
        while frame is not None:
            trainer = frame.f_locals.get("self") if frame.f_code.co_name == "train" else None
            if isinstance(trainer, Trainer) and self in trainer.callback_handler.callbacks:
                return True
            frame = frame.f_back
        return False

    def _unhook(self) -> None:
        """From here on everything is saved and loaded as it is."""
        if self._saving is not None:
            self._saving.remove()
        if self._loads is not None:
            self._loads.end()
        self._saving = self._loads = None

    def _require_growth(self) -> None:
        """Refuse a network that is put together of two."""
        if self._loads is not None and self._loads.seeds_due:
            self._unhook()
            raise WrapError(
                "weights were loaded into the model while the Trainer was about to load the best, and their growth "
                "was not restored: load them again, now that the Trainer is through, or train again"
            )

    def finish(self, *, settle: Settle = "worth", best: bool = False) -> nn.Module:
        """Settle, or with `best` go back to the best epoch, and give back an ordinary module."""
        self._require_growth()
        return super().finish(settle=settle, best=best)

    def _add_growth(self, optimizer: Optimizer, packed: dict[str, Any]) -> dict[str, Any]:
        """What is saved of the optimiser: the host's part, with the growth beside it."""
        saved = host_part(self.grower.model, optimizer, packed)
        saved["state"][GROWTH] = {"grower": without_host(self.grower), "evaluated_at": self._evaluated_at}
        return saved

    def _restore(self, growth: Mapping[str, Any]) -> None:
        require_growth(growth, {"grower", "evaluated_at"})
        self.grower.load_state_dict(with_host(self.grower, growth["grower"]))
        self._evaluated_at = growth["evaluated_at"]

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Decide on the evaluation before, if there was one since the last decision."""
        del args, state, control, kwargs
        self._require_growth()
        self._go_on()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Take in what was just evaluated, if anything was trained since the last time."""
        del args, control
        self._require_growth()
        metrics, batches = kwargs.get("metrics"), kwargs.get("eval_dataloader")
        assert isinstance(metrics, Mapping)
        names = {self._validation_loss, self._validation_accuracy, self._validation_metric}
        if not self._training or state.global_step == self._evaluated_at or not names & set(metrics):
            return
        if isinstance(batches, Iterable):
            self._batches = batches
        # An older one is of another epoch, and this one's is then unknown.
        losses = [
            entry["loss"]
            for entry in state.log_history
            if "loss" in entry and entry["step"] > self._evaluated_at
        ]
        self._evaluated_at = state.global_step
        self.grower.take_in(
            train_loss=losses[-1] if losses else None,
            validation_loss=metrics.get(self._validation_loss),
            validation_accuracy=metrics.get(self._validation_accuracy),
            validation_metric=metrics.get(str(self._validation_metric)),
        )

    def _measured(self, model: nn.Module) -> Mapping[str, float | None]:
        """The evaluation set as validation; unknown until the Trainer has evaluated, and its batches are known."""
        if self._batches is None:
            return dict.fromkeys(VALIDATED)
        return LoaderValidation(self._batches, self._options.get("loss"), self._options.get("metric"))(model)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Record the last evaluation, or go back to the best where the Trainer did; later ones decide nothing."""
        del control, kwargs
        self._unhook()
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            file = os.path.join(state.best_model_checkpoint, OPTIMIZER_NAME)
            self._restore(torch.load(file, map_location="cpu", weights_only=True, mmap=True)["state"][GROWTH])
        self._end()
        self._training = False


def _refuse(args: TrainingArguments) -> None:
    """What growth cannot do, before anything is trained."""
    if args.world_size > 1 or args.n_gpu > 1:
        raise WrapError(
            "the Trainer runs several replicas: growing them together is not supported yet. Use one device"
        )
    if args.eval_strategy == "no":
        raise WrapError("the Trainer never evaluates, so nothing can be decided: set eval_strategy='epoch'")
    if args.load_best_model_at_end and args.save_only_model:
        raise WrapError(
            "load_best_model_at_end with save_only_model: the best checkpoint would hold no growth, which is saved "
            "with the optimizer. Set save_only_model=False"
        )


def _evaluations(args: TrainingArguments, state: TrainerState) -> int:
    """How many there will be, by the Trainer's own count of epochs or steps."""
    if args.eval_strategy == "epoch":
        return state.num_train_epochs
    return math.ceil(state.max_steps / state.eval_steps)  # the last step is always evaluated
