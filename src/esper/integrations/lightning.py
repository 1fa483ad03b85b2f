"""PyTorch Lightning: a callback that lets a LightningModule, or a part of it, grow while it is fitted."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from esper.grower import Grower
from esper.integrations.callback import (
    GrowerOptions,
    HasGrower,
    HostLoads,
    on_device,
    require_growth,
    scaler_of,
)
from esper.kasmina import WrapError
from esper.kasmina.probing import ExampleInput

_NO_GROWTH = (
    "{} holds no growth: it was saved without this callback, or with save_weights_only. Use a checkpoint that was "
    "saved with it, or load the weights into the module and fit from the start"
)


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
        self._saved: dict[str, object] | None = None
        """The state in the checkpoint that is being resumed, until there is a Grower to restore."""
        self._validated: dict[str, Tensor | None] | None = None
        """What validation gave since the last epoch's end; the trainer goes on showing older metrics."""
        self._loads: HostLoads | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before weights are restored: those of seeds come with the growth, once there are seeds to hold them."""
        del trainer, stage
        self._loads = HostLoads(pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """From here on weights are loaded as they are."""
        del trainer, pl_module, stage
        if self._loads is not None:
            self._loads.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The trainer tears down no callback when it is interrupted."""
        del exception
        self.teardown(trainer, pl_module, "")

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
        saved, self._saved = self._saved, None
        if saved is not None:  # before the trainer restores the optimiser, which must know the seeds
            self._restore(saved)
        elif trainer.ckpt_path is not None:
            raise WrapError(_NO_GROWTH.format(trainer.ckpt_path))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a network that is put together of two epochs."""
        del pl_module
        self._require_growth(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a network that is put together of two epochs."""
        del pl_module
        self._require_growth(trainer)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a network that is put together of two epochs."""
        del pl_module
        self._require_growth(trainer)

    def _require_growth(self, trainer: Trainer) -> None:
        if self._loads is not None and self._loads.seeds_due:
            raise WrapError(_NO_GROWTH.format(trainer.ckpt_path))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take in what this epoch's validation gave."""
        del pl_module
        if not trainer.sanity_checking:
            self._validated = self._logged(trainer, "validation_")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide on the epoch before, where there is something to decide on."""
        del trainer, pl_module
        self._go_on()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take in the epoch."""
        del pl_module
        validated, self._validated = self._validated, None
        if validated is None and self._waits_for_validation(trainer):
            return
        self.grower.take_in(**self._logged(trainer, "train_"), **(validated or {}))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the last epoch."""
        del trainer, pl_module
        self._end()

    def _logged(self, trainer: Trainer, prefix: str) -> dict[str, Tensor | None]:
        """The metrics of this kind that the module logged."""
        logged = trainer.callback_metrics
        return {name: logged.get(key) for name, key in self._names.items() if name.startswith(prefix)}

    def _waits_for_validation(self, trainer: Trainer) -> bool:
        """Whether just validated epochs can be decided on."""
        return trainer.enable_validation and self._options.get("validate") is None

    def _decisions(self, trainer: Trainer) -> int | None:
        if not trainer.max_epochs or trainer.max_epochs < 0:
            return None
        every = (trainer.check_val_every_n_epoch or 1) if self._waits_for_validation(trainer) else 1
        return max(trainer.max_epochs // every, 1)

    def state_dict(self) -> dict[str, object]:
        """The Grower's, for the trainer's checkpoint, with what was validated in an epoch that goes on."""
        if self._grower is None:
            return {}
        return {"grower": self._grower.state_dict(), "validated": self._validated}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go to the checkpoint's growth; to fit on from it, once the Grower is made."""
        del pl_module
        self._saved = checkpoint["callbacks"].get(self.state_key)
        if trainer.state.fn == TrainerFn.FITTING or self._saved is None:
            return
        if self._grower is None:
            raise WrapError(
                "the checkpoint holds a network with seeds, and this callback has not fitted one: use the Trainer "
                "that fitted it, or test what finish() exported"
            )
        self._restore(self._saved)
        self._saved = None
        self._end()

    def _restore(self, saved: Mapping[str, Any]) -> None:
        require_growth(saved, {"grower", "validated"})
        self.grower.load_state_dict(saved["grower"])
        self._validated = saved["validated"]
        if self._loads is not None:
            self._loads.seeds_due = False
