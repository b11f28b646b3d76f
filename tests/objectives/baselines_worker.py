"""One of two processes: trains a linear net with methods that keep rows or look at the batch of all processes."""

import numpy as np
import torch
from torch import nn
from two_processes import main

from fewtags.labels import Batch, LabelMatrix
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Problem, Progress
from fewtags.objectives.class_aware import ClassAwareSelective
from fewtags.objectives.counted import EPR, ROLE
from fewtags.objectives.curriculum import CurriculumLabelling
from fewtags.objectives.large_loss import LargeLoss
from fewtags.objectives.temporal import TemporalEnsembling
from fewtags.objectives.uncertain import EntropyMaximisation

SAMPLES, CLASSES, FEATURES, EPOCHS, BATCH = 22, 5, 6, 5, 8
METHODS = {
    "epr": lambda: EPR(positives_per_image=1.7),
    "role": lambda: ROLE(positives_per_image=1.7),
    "ll-r": lambda: LargeLoss(share=0.03),
    "ll-ct": lambda: LargeLoss(mode="correct", share=0.03),
    "ll-cp": lambda: LargeLoss(mode="correct_for_good", share=0.03),
    "em-apl": lambda: EntropyMaximisation(soft_weight=0.5, soft_from=2),
    "em-apl-pass": lambda: EntropyMaximisation(soft_weight=0.5, soft_from=2, soft_scores="pass"),
    "csl-prior": lambda: ClassAwareSelective(top_k=0, prior_threshold=0.5, prior_epochs=2),
    "curriculum": lambda: CurriculumLabelling(label_from=1, positive_above=0.5, negative_below=0.2, unknown="ignore"),
    "temporal": TemporalEnsembling,
}


class Net(nn.Module):
    """A linear net on vectors; every process makes the same one."""

    def __init__(self):
        super().__init__()
        weight = np.random.default_rng(5).normal(size=(CLASSES, FEATURES)) / 3
        self.head = nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(weight))
            self.head.bias.zero_()

    def forward(self, images):
        logits = self.head(images[:, :, 0, 0].double())
        return Output(logits, logits[:, :, None, None], images)


def data():
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.normal(size=(SAMPLES, FEATURES, 1, 1))).float()
    labels = rng.choice(np.array([1, 0, 0, 0, -1], np.int8), size=(SAMPLES, CLASSES))
    return images, labels


def train(name, shard):
    """Train for some epochs with one method; return the weights, the parts, and what the epochs reported."""
    images, labels = data()
    net, method = Net(), METHODS[name]()
    problem = Problem(labels=LabelMatrix.from_dense(labels), grid=(1, 1), epochs=EPOCHS, seed=3, shard=shard)
    parts, optimizer, reports = method.setup(net, problem), torch.optim.SGD(net.parameters(), lr=0.5), []
    owned = shard.owned(SAMPLES)
    for epoch in range(EPOCHS):
        if method.needs_predictions(epoch):
            with torch.no_grad():
                method.on_predictions(epoch, net(images[owned]).logits.float())
        reports.append(dict(method.on_epoch_start(epoch)))
        order = torch.from_numpy(np.random.default_rng(epoch).permutation(SAMPLES))
        chunks = order.split(BATCH)
        for step, everywhere in enumerate(chunks):
            index = everywhere[everywhere % shard.world == shard.rank]
            batch = Batch(
                images=images[index],
                labels=torch.from_numpy(labels[index.numpy()]),
                index=index,
                views=torch.zeros(len(index), 2, 3),
            )
            out = method.step(net, batch, Progress(epoch, step, len(chunks), lr=0.05))
            optimizer.zero_grad()
            # As `Fit`: the mean over processes of weighted means is the mean over all images.
            (out.loss * len(index) / len(everywhere)).backward()
            for parameter in net.parameters():
                parameter.grad = shard.sum(parameter.grad)
            optimizer.step()
            method.commit(net, batch, out)
    state = {part: {key: value.clone() for key, value in held.state_dict().items()} for part, held in parts.items()}
    return {"weight": net.head.weight.detach(), "parts": state, "reports": reports}


if __name__ == "__main__":
    main(lambda _, shard: {name: train(name, shard) for name in METHODS})
