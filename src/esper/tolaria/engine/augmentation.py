"""Training pictures shown in another way each time: mirrored, and cropped at another place.

A *view* is a whole number that says how one sample is shown. Views are drawn on the CPU, so that a host sees the same
on every device, and carried out where the data are, inside the captured step: nothing waits for them.
"""

import torch
from torch import Tensor

from esper.tolaria.tasks.task import Augmentation


def draw_views(augmentation: Augmentation, steps: int, batch: int, *, generator: torch.Generator) -> Tensor:
    """Views (step, batch), each of the possible ones as likely as any other."""
    places = (2 * augmentation.padding + 1) ** 2
    return torch.randint(places * (2 if augmentation.flip else 1), (steps, batch), generator=generator)


def shown(pictures: Tensor, indices: Tensor, views: Tensor, augmentation: Augmentation) -> Tensor:
    """The pictures `indices` (batch,) under their `views` (batch,): (batch, channel, height, width).

    With s = 2 padding + 1, the view 2 (s i + j) + m shows at (y, x) the pixel (y + i - padding, x + j - padding), and
    0 where there is none; m = 1 counts x from the right. Without flips a view is s i + j.

    pictures  (sample, channel, height, width), of which nothing is changed
    """
    height, width = pictures.shape[2:]
    padding, device = augmentation.padding, pictures.device
    across = torch.arange(width, device=device).expand(len(views), width)  # (batch, x)
    if augmentation.flip:
        across = torch.where((views % 2 == 1).unsqueeze(1), width - 1 - across, across)
        views = views // 2
    span = 2 * padding + 1
    rows = torch.arange(height, device=device) + (views // span - padding).unsqueeze(1)  # (batch, y)
    columns = across + (views % span - padding).unsqueeze(1)  # (batch, x)
    row, column = rows.clamp(0, height - 1).unsqueeze(2), columns.clamp(0, width - 1).unsqueeze(1)
    seen = pictures.permute(0, 2, 3, 1)[indices.view(-1, 1, 1), row, column]  # (batch, y, x, channel)
    if padding:
        outside = ((rows < 0) | (rows >= height)).unsqueeze(2) | (
            (columns < 0) | (columns >= width)
        ).unsqueeze(1)
        seen.masked_fill_(outside.unsqueeze(3), 0.0)
    seen = seen.permute(0, 3, 1, 2)
    return seen.contiguous() if pictures.is_contiguous() else seen
