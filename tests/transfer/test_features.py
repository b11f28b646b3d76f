"""Features: those of the encoder, in order, by the test view; unit length."""

import numpy as np
import pytest
import torch
from batches import collated

from fewtags.errors import DataError
from fewtags.metrics.neighbours import unit
from fewtags.nets.encoder import pooled
from fewtags.photos.augment import ResizedCrop, WholeImage
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate
from fewtags.transfer.features import photo_features


@pytest.mark.parametrize("policy", [WholeImage(32), ResizedCrop(32)])
def test_features_are_those_of_each_photo_alone(single, encoder, cpu, policy):
    encoder.train()  # features must not depend on the batch anyway
    table = single.train
    found = photo_features(encoder, table, policy, cpu)
    data = EvalSet(PhotoFolder(table.root, table.images), table.matrix, policy)
    collate = Collate(encoder.preprocessing.mean, encoder.preprocessing.std)
    with torch.no_grad():
        alone = [pooled(encoder.features(collated(collate, [data[i]]).images))[0].numpy() for i in range(len(table))]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.stack(alone), rtol=1e-5, atol=1e-6)


def test_progress_is_reported(single, encoder, cpu):
    ticks = []
    photo_features(encoder, single.train, WholeImage(32), cpu, tick=lambda *at: ticks.append(at))
    assert ticks == [(18, 18)]


def test_features_that_are_not_finite_are_refused(single, encoder, cpu):
    with torch.no_grad():
        next(encoder.parameters()).fill_(torch.nan)
    with pytest.raises(DataError, match="the features of 9 of 9 photos are not finite; check the encoder"):
        photo_features(encoder, single.test, WholeImage(32), cpu)


def test_labels_without_a_photo_folder_are_refused(single, encoder, cpu):
    with pytest.raises(DataError, match="the labels do not say where the photos are; give their folder: images="):
        photo_features(encoder, single.test.with_root(None), WholeImage(32), cpu)


def test_unit_length_by_hand():
    found = unit(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
