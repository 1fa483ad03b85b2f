"""How much of a model is trained, in one line."""

from torch import nn


def describe_trainable(*parts: nn.Module) -> str:
    """The parameters that require gradients, of all, as PEFT prints them; those that parts share count once."""
    parameters = {id(parameter): parameter for part in parts for parameter in part.parameters()}.values()
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in parameters)
    share = 100 * trained / total if total else 0.0
    return f"trainable params: {trained:,} || all params: {total:,} || trainable%: {share:.4f}"
