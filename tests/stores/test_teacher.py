"""Scores of a teacher by image."""

import numpy as np
import torch

from fewtags.labels import Label
from fewtags.stores.rows import ScoreStore
from fewtags.stores.shard import Shard
from fewtags.stores.teacher import TeacherScores, teacher_bytes

VALUES = np.array([[0.0, 1.0], [0.5, np.nan], [0.25, 0.75]], np.float16)


def test_rows_are_read_by_global_index():
    whole = TeacherScores(VALUES).read(torch.tensor([2, 1]))
    assert whole.dtype == torch.float32
    assert whole[0].tolist() == [0.25, 0.75]
    assert whole[1, 0] == 0.5
    assert whole[1, 1].isnan()
    second = TeacherScores(VALUES, shard=Shard(1, 2))
    assert second.values.shape == (1, 2)
    assert second.read(torch.tensor([1]))[0, 0] == 0.5


def test_it_is_a_copy_and_takes_the_bytes_that_are_planned(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    made = TeacherScores(mapped)
    assert made.values.nbytes == teacher_bytes(3, 2)
    made.values[0, 0] = 0.5
    assert mapped[0, 0] == 0.0


def test_on_the_device_meta_nothing_is_stored():
    assert TeacherScores(VALUES, device=torch.device("meta")).values.is_meta


def test_running_scores_start_with_a_teacher():
    """Annotated positives start at 1, cells without a score at 0; s <- .8 s + .2 f then averages from the teacher's."""
    scores = ScoreStore(3, 2, momentum=0.8)
    scores.start_with(torch.from_numpy(VALUES))
    labels = torch.tensor([[Label.POSITIVE, 0], [0, 0], [0, 0]], dtype=torch.int8)
    index = torch.arange(3)
    assert scores.read(index, labels).tolist() == [[1.0, 1.0], [0.5, 0.0], [0.25, 0.75]]
    scores.update(index, torch.full((3, 2), 0.5), labels)
    expected = torch.tensor([[0.9, 0.9], [0.5, 0.1], [0.3, 0.7]])
    torch.testing.assert_close(scores.read(index, labels), expected)
