"""A grown model as a file, in the form that its ending says."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from esper.kasmina.model import GrowingModel

ENDINGS = {
    ".safetensors": "weights, topology and stages, to load into a fresh wrap of the same host",
    ".onnx": "an ONNX program, for any runtime",
    ".pt2": "a torch.export program, to run with torch alone",
}

ONE_ONNX_FILE = 2**30
"""Bytes of weights up to which a program is one file, easily moved; beyond them ONNX needs a second (.onnx.data)."""


def require_writable(path: Path) -> None:
    """Raise before anything is trained, if the ending or what it needs is not there."""
    if path.suffix not in ENDINGS:
        raise ValueError(f"the file to export is {path}; expected an ending among {', '.join(ENDINGS)}")
    if path.suffix == ".onnx" and (find_spec("onnx") is None or find_spec("onnxscript") is None):
        raise ValueError(
            "exporting to ONNX needs the packages onnx and onnxscript: pip install 'esper[onnx]'"
        )
    if not path.parent.is_dir():
        raise ValueError(f"the file to export is {path}, and there is no folder {path.parent}")


def write_model(model: GrowingModel, path: str | os.PathLike[str], example_input: Tensor) -> None:
    """Write a model that has stopped growing; programs take batches of any size."""
    target = Path(path)
    require_writable(target)
    if target.suffix == ".safetensors":
        model.detach()  # the optimiser's state is not part of the product
        model.save(target)
        return
    plain = model.export().eval()
    example = torch.empty(example_input.shape, dtype=example_input.dtype)  # strides of its own, not a view's
    with _quiet(), torch.no_grad():
        _write_program(plain, target, example.copy_(example_input))


@contextmanager
def _quiet() -> Iterator[None]:
    """Both exporters warn about their own internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _write_program(plain: nn.Module, target: Path, example_input: Tensor) -> None:
    batch = ({0: torch.export.Dim.AUTO},)
    if target.suffix == ".onnx":
        torch.onnx.export(
            plain,
            (example_input,),
            target,
            dynamo=True,
            dynamic_shapes=batch,
            external_data=_bytes(plain) > ONE_ONNX_FILE,
            verbose=False,
        )
    else:
        torch.export.save(torch.export.export(plain, (example_input,), dynamic_shapes=batch), target)


def _bytes(plain: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in plain.state_dict().values())
