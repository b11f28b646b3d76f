"""Compare a probe with its published protocol, in words."""

from __future__ import annotations

from collections.abc import Sequence

from fewtags.engine.encoder_file import EncoderInfo
from fewtags.photos.augment import Policy, ResizedCrop
from fewtags.transfer.probes import SVM_COST
from fewtags.transfer.task import Task
from fewtags.transfer.training import TrainSettings


def knn_protocol(task: Task, k: int, temperature: float) -> str:
    """Compare the nearest-neighbour probe with Wu et al., CVPR 2018."""
    if task.kind == "multi":
        return (
            "protocol: none is published. The vote is that of Wu et al. (CVPR 2018) for one class per photo; here a "
            "class scores the share of the votes of the neighbours that have it."
        )
    return (
        f"protocol: the weighted vote of Wu et al. (CVPR 2018) with k = {k} and temperature {temperature:g}; they use "
        "ImageNet, k = 200 and 0.07."
    )


def svm_protocol(task: Task, costs: Sequence[float], info: EncoderInfo, policy: Policy, subsampled: bool) -> str:
    """Compare the SVM probe with the VOC07 SVM of Van Gansbeke et al., NeurIPS 2021."""
    name = "VOC07 SVM of Van Gansbeke et al. (NeurIPS 2021: C = 0.5, positives weighted 2, squared hinge, unit features"
    differs = [
        *([] if task.name == "voc2007" else ["the data are not VOC2007"]),
        *([] if tuple(costs) == (SVM_COST,) else [f"C is {', '.join(f'{c:g}' for c in costs)}"]),
        *other_backbone(info),
        *([] if isinstance(policy, ResizedCrop) and policy.size == 224 else ["the test view is not a 224 centre crop"]),
        *(["few training photos"] if subsampled else []),
    ]
    reported = "; compare mAP (all-point), which they report)" if task.kind == "multi" else ")"
    return f"protocol: {'resembles' if differs else 'matches'} the {name}{reported}{_differs(differs)}"


def linear_protocol(task: Task, candidates: Sequence[TrainSettings], views: int, subsampled: bool) -> str:
    """Compare the linear layer with that of MoCo, CVPR 2020."""
    one = candidates[0]
    recipe = (one.epochs, one.lr, one.weight_decay, one.batch_size, one.schedule)
    differs = [
        "the data are not ImageNet",
        *(["binary cross-entropy instead of softmax"] if task.kind == "multi" else []),
        *([] if len(candidates) == 1 and recipe == (100, 30.0, 0.0, 256, "steps") else ["other settings"]),
        *([f"{views} crops per photo are reused"] if views < one.epochs else []),
        *(["momentum is reset when the learning rate drops"] if one.schedule == "steps" else []),
        *(["few training photos"] if subsampled else []),
    ]
    return (
        "protocol: resembles MoCo's linear probe (CVPR 2020: SGD, lr 30 divided by 10 at epochs 60 and 80 of 100, no "
        f"weight decay, batch 256){_differs(differs)}"
    )


def finetune_protocol(task: Task, settings: TrainSettings, info: EncoderInfo, subsampled: bool) -> str:
    """Compare fine-tuning with MLS (ICCV 2023), table 5."""
    stated = 120 if task.kind == "single" else None
    differs = [
        *([] if task.name else ["other data"]),
        *other_backbone(info),
        *([] if stated in (None, settings.epochs) else [f"{settings.epochs} epochs instead of {stated}"]),
        *(["few training photos"] if subsampled else []),
    ]
    known = "the paper states 120 epochs" if task.kind == "single" else "the paper does not describe VOC2007 training"
    return (
        f"protocol: resembles fine-tuning in MLS (ICCV 2023), table 5; {known}, and does not state learning rate, "
        f"batch, image size and schedule{_differs(differs)}"
    )


def _differs(points: Sequence[str]) -> str:
    return f"; differs: {', '.join(points)}." if points else "."


def other_backbone(info: EncoderInfo) -> list[str]:
    """Return the difference from a resnet50, if there is one."""
    return [] if info.backbone.split(".")[0] == "resnet50" else [f"the backbone is {info.backbone}, not resnet50"]
