"""One of two processes: keys of batches that are of 4 and 3 images, with BatchNorm in training mode."""

from two_processes import main
from two_views import Cells, batch_of, in_double, problem

from fewtags.objectives.base import Progress
from fewtags.objectives.momentum import MomentumPair

AT, IDS = Progress(2, 5, 9), ([8, 0, 6, 4], [3, 9, 1])


def keys(shard, groups, batch):
    """Of the batch, and the copy's BatchNorm statistics after it."""
    net = Cells(batchnorm=True)
    pair = MomentumPair(net, problem(shard=shard), (7, 6), 0.9, groups)
    in_double(pair.parts())
    found = pair.keys(net, batch.second_view.images, batch.index, AT)
    norm = pair.follower.get_submodule("encoder.layers.1")
    return {**found._asdict(), "mean": norm.running_mean}


if __name__ == "__main__":
    main(lambda _, shard: {f"{g} groups": keys(shard, g, batch_of(IDS[shard.rank], shard.rank)) for g in (1, 2)})
