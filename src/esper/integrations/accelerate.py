"""Hugging Face Accelerate: the growth in what `save_state` writes, restored before `load_state` loads the rest."""

from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from esper.grower import Grower
from esper.kasmina import WrapError

FILE = "growth.pt"
"""The growth's file in a folder that `save_state` writes."""


def register_growth(accelerator: Accelerator, grower: Grower) -> None:
    """Let `accelerator.save_state` save the Grower and `accelerator.load_state` go on with it.

        grower = esper.Grower(model, slots, optimizer=optimizer, ...)
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        register_growth(accelerator, grower)

    It takes the place of `register_for_checkpointing(grower)`, which restores its objects last: the seeds have to be
    there before Accelerate loads the weights and the optimiser's state.
    """
    if accelerator.num_processes > 1:
        raise WrapError(
            f"the Accelerator runs {accelerator.num_processes} processes: growing under it is for one. A loop of "
            "your own with DistributedDataParallel or fully_shard may have several"
        )

    def save(models: list[nn.Module], weights: list[dict[str, Tensor]], folder: str) -> None:
        del models, weights
        if accelerator.is_main_process:
            torch.save(grower.state_dict(), Path(folder) / FILE)

    def load(models: list[nn.Module], folder: str) -> None:
        del models
        file = Path(folder) / FILE
        if not file.is_file():
            raise WrapError(
                f"{folder} holds no growth: {FILE} is missing, so it was saved without register_growth(). Load a "
                "folder that was saved with it"
            )
        grower.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
