"""What is said about published protocols: matches only where nothing differs."""

from dataclasses import replace

import pytest

from fewtags.engine.encoder_file import EncoderInfo
from fewtags.photos.augment import ResizedCrop, WholeImage
from fewtags.transfer.protocols import finetune_protocol, knn_protocol, linear_protocol, svm_protocol
from fewtags.transfer.task import Task
from fewtags.transfer.training import TrainSettings

INFO = EncoderInfo(backbone="resnet50", size=224, mean=(0.5,) * 3, std=(0.5,) * 3, method={})
MOCO = TrainSettings(epochs=100, lr=30.0, weight_decay=0.0, batch_size=256, schedule="steps")
TUNE = TrainSettings(epochs=120, lr=0.01, weight_decay=1e-4, batch_size=64, schedule="cosine")


@pytest.fixture
def voc(multi):
    return Task("voc2007", "multi", multi.train, multi.test)


@pytest.fixture
def flowers(single):
    return Task("flowers", "single", single.train, single.test)


def test_the_voc07_svm_matches(voc):
    found = svm_protocol(voc, (0.5,), INFO, ResizedCrop(224), few=False)
    assert found == (
        "protocol: matches the VOC07 SVM of Van Gansbeke et al. (NeurIPS 2021: C = 0.5, positives weighted 2, squared "
        "hinge, unit features; compare mAP (all-point), which they report)."
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"costs": (0.5, 5.0)}, "C is 0.5, 5"),
        ({"info": replace(INFO, backbone="resnet18.a1")}, "the backbone is resnet18.a1, not resnet50"),
        ({"policy": WholeImage(224)}, "the test view is no centre crop of 224"),
        ({"policy": ResizedCrop(448)}, "the test view is no centre crop of 224"),
        ({"few": True}, "few training photos"),
    ],
)
def test_an_svm_that_differs_resembles(voc, change, words):
    given = {"costs": (0.5,), "info": INFO, "policy": ResizedCrop(224), "few": False} | change
    found = svm_protocol(voc, **given)
    assert found.startswith("protocol: resembles the VOC07 SVM")
    assert found.endswith(f"; differs: {words}.")


def test_an_svm_on_other_data(flowers):
    found = svm_protocol(flowers, (0.5,), INFO, ResizedCrop(224), few=False)
    assert found.endswith("unit features); differs: the data are not VOC2007.")


def test_knn(voc, flowers):
    assert knn_protocol(voc, 20, 0.07).startswith("protocol: no published one.")
    assert "with k = 20 and temperature 0.07" in knn_protocol(flowers, 20, 0.07)


def test_linear(flowers, voc):
    assert linear_protocol(flowers, [MOCO], 100, few=False).endswith(
        "differs: the data are not ImageNet, momentum begins anew where the learning rate drops."
    )
    assert linear_protocol(voc, [MOCO, replace(MOCO, lr=3.0)], 8, few=True).endswith(
        "differs: the data are not ImageNet, binary cross-entropy instead of softmax, other settings, 8 crops per "
        "photo come again and again, momentum begins anew where the learning rate drops, few training photos."
    )


def test_finetuning(flowers, voc, single):
    assert finetune_protocol(flowers, TUNE, INFO, few=False).endswith("schedule are not in the paper.")
    assert "nothing of the training on VOC2007 is stated there" in finetune_protocol(voc, TUNE, INFO, few=False)
    other = finetune_protocol(single, replace(TUNE, epochs=10), INFO, few=False)
    assert other.endswith("; differs: other data than theirs, 10 epochs instead of 120.")
