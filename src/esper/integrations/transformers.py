"""Hugging Face Transformers: a callback that lets the Trainer's model grow, a decision at every evaluation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Unpack

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from esper.grower import Grower
from esper.grower.measuring import VALIDATED
from esper.grower.validating import LoaderValidation
from esper.integrations.callback import GrowerOptions, HasGrower, on_device, scaler_of
from esper.kasmina import WrapError
from esper.kasmina.probing import ExampleInput


class GrowthCallback(HasGrower, TrainerCallback):
    """Grows at every evaluation (`eval_strategy="epoch"`), from the metrics that it gives.

        growth = GrowthCallback(slots=["resnet.encoder.stages.*"], example_input={"pixel_values": x})
        trainer = Trainer(model, args, train_dataset=..., eval_dataset=..., callbacks=[growth])
        trainer.train()
        plain = growth.finish()

    Seeds are measured on the evaluation set, a pass for each live one, unless `validate` says otherwise
    (`validate=None`: not at all). `Trainer.save_model` writes the weights of seeds too, which `from_pretrained` of a
    plain model leaves out with a warning: use `finish()`, or `growth.grower.model.save(...)`. A run that was stopped
    cannot be resumed by the Trainer yet.

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

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Make the Grower."""
        del control
        model, optimizer, scheduler = (kwargs.get(name) for name in ("model", "optimizer", "lr_scheduler"))
        if state.global_step:
            raise WrapError(
                "the Trainer resumes a checkpoint, which holds no seeds: growing cannot go on from it yet. Train "
                "from the start, or save with growth.grower.state_dict() in a loop of your own"
            )
        if args.world_size > 1 or args.n_gpu > 1:
            raise WrapError(
                "the Trainer runs several replicas: growing them together is not supported yet. Use one device"
            )
        if args.eval_strategy == "no":
            raise WrapError(
                "the Trainer never evaluates, so nothing can be decided: set eval_strategy='epoch'"
            )
        if args.load_best_model_at_end:
            raise WrapError(
                "load_best_model_at_end puts an earlier epoch's host under the seeds of the last: set it to False"
            )
        # Accelerate wraps both; growth needs what is inside.
        inner, schedule = (
            getattr(optimizer, "optimizer", optimizer),
            getattr(scheduler, "scheduler", scheduler),
        )
        assert isinstance(model, nn.Module)
        assert isinstance(inner, Optimizer)
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

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Decide, from what was just evaluated."""
        del args, control
        if not self._training:
            return
        metrics, batches = kwargs.get("metrics"), kwargs.get("eval_dataloader")
        assert isinstance(metrics, Mapping)
        if isinstance(batches, Iterable):
            self._batches = batches
        # An older one is of another epoch, and this one's is then unknown.
        losses = [
            entry["loss"]
            for entry in state.log_history
            if "loss" in entry and entry["step"] > self._evaluated_at
        ]
        self._evaluated_at = state.global_step
        self.grower.step(
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
        """Later evaluations decide nothing."""
        del args, state, control, kwargs
        self._training = False


def _evaluations(args: TrainingArguments, state: TrainerState) -> int:
    """How many there will be, by the Trainer's own count of epochs or steps."""
    if args.eval_strategy == "epoch":
        return state.num_train_epochs
    return math.ceil(state.max_steps / state.eval_steps)  # the last step is always evaluated
