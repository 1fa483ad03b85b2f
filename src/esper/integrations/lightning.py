"""PyTorch Lightning: a callback that lets a LightningModule, or a part of it, grow while it is fitted."""

from collections.abc import Sequence
from typing import Unpack

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.hooks import RemovableHandle

from esper.grower import Grower
from esper.integrations.callback import GrowerOptions, HasGrower, on_device, scaler_of
from esper.kasmina import WrapError
from esper.kasmina.probing import ExampleInput
from esper.kasmina.tree import names_a_seed


class GrowthCallback(HasGrower, Callback):
    """Grows at the end of each training epoch, from the metrics that the module logs.

    Without `validate`, epochs that the trainer does not validate (`check_val_every_n_epoch`) decide nothing.

        growth = GrowthCallback(slots=["layer*"], module="net", example_input=x, validate=val_loader)
        trainer = Trainer(max_epochs=20, callbacks=[growth])
        trainer.fit(model, train_loader, val_loader)
        plain = growth.finish()

    slots          names or patterns of submodules, within `module`
    module         the submodule that grows and is exported; "" is the whole LightningModule
    example_input  what goes through it; by default the module's `example_input_array`
    train_loss, train_accuracy, validation_loss, validation_accuracy, validation_metric   the names they are logged
                   by; what is not logged is unknown. The last is used where there is a `mode`
    options        those of `esper.Grower`; optimizer, schedulers, scaler, accumulation and epochs are the trainer's
    """

    def __init__(
        self,
        slots: Sequence[str],
        *,
        module: str = "",
        example_input: ExampleInput | None = None,
        train_loss: str = "train_loss",
        train_accuracy: str = "train_acc",
        validation_loss: str = "val_loss",
        validation_accuracy: str = "val_acc",
        validation_metric: str | None = None,
        **options: Unpack[GrowerOptions],
    ) -> None:
        super().__init__()
        self._slots, self._module, self._example = list(slots), module, example_input
        self._names = {
            "train_loss": train_loss,
            "train_accuracy": train_accuracy,
            "validation_loss": validation_loss,
            "validation_accuracy": validation_accuracy,
        }
        if validation_metric is not None:
            self._names["validation_metric"] = validation_metric
        self._options = options
        self._pending: dict[str, object] | None = None
        self._waiting: RemovableHandle | None = None
        self._left_out: str | None = None
        """A key of the checkpoint that belongs to a seed."""
        self._validated = False
        """Whether validation ran since the last epoch's end; the trainer goes on showing older metrics."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """A checkpoint's weights are loaded before there are seeds: theirs come with the Grower's own state."""
        del trainer
        if stage == "fit" and self._grower is None:
            grown = pl_module.get_submodule(self._module)
            self._waiting = grown.register_load_state_dict_pre_hook(self._leave_seeds_out)

    def _leave_seeds_out(
        self, module: nn.Module, state_dict: dict[str, object], prefix: str, *_: object
    ) -> None:
        del module
        for key in [key for key in state_dict if key.startswith(prefix) and names_a_seed(key)]:
            del state_dict[key]
            self._left_out = key

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the Grower."""
        if trainer.world_size > 1:
            raise WrapError(
                f"the Trainer runs {trainer.world_size} processes: growing several replicas together is not "
                "supported yet. Use devices=1"
            )
        if len(trainer.optimizers) != 1:
            raise WrapError(f"the module has {len(trainer.optimizers)} optimizers; growing expects one")
        example = pl_module.example_input_array if self._example is None else self._example
        if example is None:
            raise WrapError("example_input is missing: pass it, or set the module's example_input_array")
        self._grower = Grower(
            pl_module.get_submodule(self._module),
            self._slots,
            optimizer=trainer.optimizers[0],
            example_input=on_device(example, pl_module.device),
            scheduler=[config.scheduler for config in trainer.lr_scheduler_configs],
            scaler=scaler_of(trainer.precision_plugin),
            epochs=self._decisions(trainer),
            accumulate=trainer.accumulate_grad_batches,
            **self._options,
        )
        if self._waiting is not None:
            self._waiting.remove()
        if self._left_out is not None and self._pending is None:
            raise WrapError(
                f"the checkpoint holds seeds ({self._left_out}) and no state of GrowthCallback, which would restore "
                "them: save it with the callback, or start from a checkpoint without seeds"
            )
        if self._pending is not None:  # before the trainer restores the optimiser, which must know the seeds
            self._grower.load_state_dict(self._pending)
            self._pending = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that the metrics are this epoch's."""
        del pl_module
        self._validated = not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide, where there is something to decide on."""
        del pl_module
        validated, self._validated = self._validated, False
        if not validated and self._waits_for_validation(trainer):
            return
        logged = trainer.callback_metrics
        fresh = [name for name in self._names if validated or not name.startswith("validation_")]
        self.grower.step(**{name: logged.get(self._names[name]) for name in fresh})

    def _waits_for_validation(self, trainer: Trainer) -> bool:
        """Whether just validated epochs can be decided on."""
        return trainer.enable_validation and self._options.get("validate") is None

    def _decisions(self, trainer: Trainer) -> int | None:
        if not trainer.max_epochs or trainer.max_epochs < 0:
            return None
        every = (trainer.check_val_every_n_epoch or 1) if self._waits_for_validation(trainer) else 1
        return max(trainer.max_epochs // every, 1)

    def state_dict(self) -> dict[str, object]:
        """The Grower's, for the trainer's checkpoint."""
        return {} if self._grower is None else self._grower.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Keep it until fitting begins, when the Grower is made."""
        self._pending = state_dict or None
