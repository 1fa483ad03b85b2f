"""What hosts are trained to do, and how well they do it: classes or measured quantities, by the dtype of targets.

    classes     loss is the cross-entropy, the score is accuracy
    quantities  loss is the mean squared error, the score is the share of their variance that is explained,
                max(0, 1 - mean squared error / variance)

Always predicting the mean of the quantities scores 0. What is worse than that, or not a number, scores 0 too: scores
are 0..1 in both, and rent weighs as much.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss that is trained on.

    outputs  (sample, ..., class) logits, or (sample, quantity)
    """
    if targets.is_floating_point():
        return F.mse_loss(outputs.float(), targets)
    return F.cross_entropy(outputs.flatten(0, -2).float(), targets.flatten())


def mean_score(outputs: Tensor, targets: Tensor, loss: Tensor, variance: float) -> Tensor:
    """Accuracy; of quantities the explained share before it is cut at 0, so that its mean is that of the mean loss.

    loss      what `mean_loss` returned
    variance  of the quantities; not used for classes
    """
    if targets.is_floating_point():
        return 1.0 - loss / variance
    return (outputs.argmax(-1) == targets).float().mean()


def loss_and_hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """(copy, sample, 2): the loss of each sample, and its share of right classes; of quantities no hits are counted.

    outputs  (copy, sample, position, class) logits, or (copy, sample, 1, quantity); float32
    targets  (sample, ...)
    """
    copies, samples = outputs.shape[:2]
    if targets.is_floating_point():
        losses = (outputs.squeeze(2) - targets).square().mean(2)
        return torch.stack((losses, torch.zeros_like(losses)), dim=2)
    wanted = targets.view(1, samples, -1).expand(copies, -1, -1)
    losses = F.cross_entropy(outputs.flatten(0, 2), wanted.flatten(), reduction="none").view(wanted.shape)
    correct = (outputs.argmax(-1) == wanted).float()
    return torch.stack((losses.mean(2), correct.mean(2)), dim=2)


def explained(loss: Tensor, variance: float) -> Tensor:
    """The score of quantities whose mean squared error is `loss`; 0 where they do not vary."""
    if not variance:
        return torch.zeros_like(loss)
    return (1.0 - loss / variance).nan_to_num(nan=0.0).clamp(min=0.0)
