"""Which published protocol a probe is, and in what it differs."""

from __future__ import annotations

from collections.abc import Sequence

from fewtags.engine.encoder_file import EncoderInfo
from fewtags.photos.augment import Policy, ResizedCrop
from fewtags.transfer.probes import SVM_COST
from fewtags.transfer.task import Task
from fewtags.transfer.training import TrainSettings


def knn_protocol(task: Task, k: int, temperature: float) -> str:
    """The nearest-neighbour probe against Wu et al., CVPR 2018."""
    if task.kind == "multi":
        return (
            "protocol: no published one. The vote is that of Wu et al. (CVPR 2018), made for one class per photo; here "
            "a class scores the share of the votes of the neighbours that have it."
        )
    return (
        f"protocol: the weighted vote of Wu et al. (CVPR 2018) with k = {k} and temperature {temperature:g}; theirs is "
        "on ImageNet with k = 200 and 0.07."
    )


def svm_protocol(task: Task, costs: Sequence[float], info: EncoderInfo, policy: Policy, few: bool) -> str:
    """The SVM probe against the VOC07 SVM of Van Gansbeke et al., NeurIPS 2021."""
    name = "VOC07 SVM of Van Gansbeke et al. (NeurIPS 2021: C = 0.5, positives weighted 2, squared hinge, unit features"
    differs = [
        *([] if task.name == "voc2007" else ["the data are not VOC2007"]),
        *([] if tuple(costs) == (SVM_COST,) else [f"C is {', '.join(f'{c:g}' for c in costs)}"]),
        *([] if info.backbone.split(".")[0] == "resnet50" else [f"the backbone is {info.backbone}, not resnet50"]),
        *([] if isinstance(policy, ResizedCrop) and policy.size == 224 else ["the test view is no centre crop of 224"]),
        *(["few training photos"] if few else []),
    ]
    reported = "; compare mAP (all-point), which they report)" if task.kind == "multi" else ")"
    return f"protocol: {'resembles' if differs else 'matches'} the {name}{reported}{_differs(differs)}"


def linear_protocol(task: Task, candidates: Sequence[TrainSettings], views: int, few: bool) -> str:
    """The linear layer against that of MoCo, CVPR 2020."""
    one = candidates[0]
    recipe = (one.epochs, one.lr, one.weight_decay, one.batch_size, one.schedule)
    differs = [
        "the data are not ImageNet",
        *(["binary cross-entropy instead of softmax"] if task.kind == "multi" else []),
        *([] if len(candidates) == 1 and recipe == (100, 30.0, 0.0, 256, "steps") else ["other settings"]),
        *([f"{views} crops per photo come again and again"] if views < one.epochs else []),
        *(["momentum begins anew where the learning rate drops"] if one.schedule == "steps" else []),
        *(["few training photos"] if few else []),
    ]
    return (
        "protocol: resembles MoCo's linear probe (CVPR 2020: SGD, lr 30 divided by 10 at epochs 60 and 80 of 100, no "
        f"weight decay, batch 256){_differs(differs)}"
    )


def finetune_protocol(task: Task, settings: TrainSettings, info: EncoderInfo, few: bool) -> str:
    """Training the whole network against MLS (ICCV 2023), table 5."""
    stated = 120 if task.kind == "single" else None
    differs = [
        *([] if task.name else ["other data than theirs"]),
        *([] if info.backbone.split(".")[0] == "resnet50" else [f"the backbone is {info.backbone}, not resnet50"]),
        *([] if stated in (None, settings.epochs) else [f"{settings.epochs} epochs instead of {stated}"]),
        *(["few training photos"] if few else []),
    ]
    known = "120 epochs are theirs" if task.kind == "single" else "nothing of the training on VOC2007 is stated there"
    return (
        f"protocol: resembles fine-tuning in MLS (ICCV 2023), table 5; {known}, and learning rate, batch, image size "
        f"and schedule are not in the paper{_differs(differs)}"
    )


def _differs(points: Sequence[str]) -> str:
    return f"; differs: {', '.join(points)}." if points else "."
