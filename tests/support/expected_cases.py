"""Labels, batches and epochs for the tests of expected negatives."""

import torch
from torch import nn

from fewtags.batched_views import stack_views
from fewtags.geometry import View
from fewtags.labels import Batch, Label, LabelMatrix
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Problem, Progress

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


class Pass(nn.Module):
    """A net whose images are its map logits."""

    def forward(self, images):
        return Output(images.mean((2, 3)), images, images)


NET = Pass()


def int8(rows):
    return torch.tensor(rows, dtype=torch.int8)


def problem_of(labels, **more):
    return Problem(labels=LabelMatrix.from_dense(labels.numpy()), **{"grid": (1, 1), "epochs": 9} | more)


def batch_of(maps, labels, index=None, view=None):
    """Maps [b, c, h, w], or logits [b, c] as 1 x 1 maps; the same view for all, the whole image by default."""
    maps = torch.as_tensor(maps, dtype=torch.float32)
    maps = maps[:, :, None, None] if maps.ndim == 2 else maps
    index = torch.arange(len(maps)) if index is None else torch.tensor(index)
    return Batch(
        images=maps, labels=labels[index], index=index, views=stack_views([view or View.identity()] * len(maps))
    )


def at(epoch, step=0, steps=2):
    return Progress(epoch, step, steps)


def visit(method, batch, epoch):
    """One step with its commit."""
    out = method.step(NET, batch, at(epoch))
    method.commit(NET, batch, out)
    return out
