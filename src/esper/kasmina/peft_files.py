"""An adapter as the files that `peft.PeftModel.from_pretrained` reads: LoRA with a rank for each layer."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from pydantic import JsonValue
from safetensors.torch import save_file
from torch import Tensor, nn

from esper.kasmina.adapters import AdapterError, brought_along, require_frozen, shown_seeds
from esper.kasmina.merging import ParallelForm, parallel_forms
from esper.kasmina.model import GrowingModel
from esper.leyline.files import write_atomically, write_json

_PREFIX = "base_model.model."


def export_peft(model: GrowingModel, folder: str | os.PathLike[str], *, base_id: str | None = None) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` to `folder`, made where it is missing.

    base_id  what `base_model_name_or_path` is to say; by default the name of the host's class

    Every seed that the output shows must have a parallel form (lora and lora_large behind a Linear or a convolution);
    modules of the host that were trained, and layers with running statistics, are `modules_to_save`.
    """
    model.replicas.rest()
    require_frozen(model.host)
    forms = parallel_forms(model.host, {name: seed for name, (_, seed) in shown_seeds(model).items()})
    if not forms:
        raise AdapterError("nothing has grown that PEFT could read: its LoRA needs a seed behind one layer")
    saved = _modules_to_save(model.host, forms)
    ranks = {name: form.up.shape[1] for name, form in forms.items()}
    usual = Counter(ranks.values()).most_common(1)[0][0]
    pattern: JsonValue = {f"^{re.escape(name)}": rank for name, rank in ranks.items() if rank != usual}
    config: dict[str, JsonValue] = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base_id or type(model.host).__name__,
        "inference_mode": True,
        "r": usual,
        "lora_alpha": usual,  # PEFT scales by lora_alpha / r
        "lora_dropout": 0.0,
        "rank_pattern": pattern,
        "alpha_pattern": pattern,
        "target_modules": "|".join(
            map(re.escape, forms)
        ),  # as one pattern: names in a list match endings too
        "modules_to_save": list[JsonValue](saved) or None,
        "lora_bias": any(form.bias is not None for form in forms.values()),
        "bias": "none",
    }
    tensors = _tensors(model.host, forms, saved)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / "adapter_model.safetensors", lambda partial: save_file(tensors, partial))
    write_json(target / "adapter_config.json", config)


def _modules_to_save(host: nn.Module, slots: Iterable[str]) -> list[str]:
    """The modules that hold what was trained of the host; PEFT must be able to name each, and it alone."""
    owners = sorted({name.rpartition(".")[0] for name in brought_along(host)})
    modules = [name for name, _ in host.named_modules(remove_duplicate=False)]
    for owner in owners:
        if not owner:
            raise AdapterError(
                "PEFT keeps trained modules whole, and the host itself holds a trained parameter: freeze it"
            )
        inside = next((slot for slot in slots if f"{slot}.".startswith(f"{owner}.")), None)
        if inside is not None:
            raise AdapterError(f"{owner} is trained and {inside} has a seed: PEFT keeps either, not both")
        other = next((name for name in modules if name != owner and name.endswith(owner)), None)
        if other is not None:
            raise AdapterError(
                f"PEFT finds modules_to_save by how their names end, and {other} ends as the trained {owner} does: "
                "rename one, or use save_adapter"
            )
    return owners


def _tensors(host: nn.Module, forms: dict[str, ParallelForm], saved: Iterable[str]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    biased = any(form.bias is not None for form in forms.values())
    for name, form in forms.items():
        weight = host.get_submodule(name).weight
        assert isinstance(weight, Tensor)
        up = form.up.view(*form.up.shape, *([1] * (weight.ndim - 2)))  # a kernel of one position
        parts = {"lora_A.weight": form.down, "lora_B.weight": up}
        if biased:
            parts["lora_B.bias"] = form.bias if form.bias is not None else torch.zeros(len(form.up))
        tensors |= {f"{_PREFIX}{name}.{part}": value.to(weight.dtype) for part, value in parts.items()}
    for owner in saved:
        for part, value in host.get_submodule(owner).state_dict().items():
            tensors[f"{_PREFIX}{owner}.{part}"] = value
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
