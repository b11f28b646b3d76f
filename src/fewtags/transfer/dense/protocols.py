"""Compare detection and segmentation runs with published protocols, in words."""

from __future__ import annotations

from dataclasses import replace

from fewtags.engine.encoder_file import EncoderInfo
from fewtags.transfer.dense.detection import VOC, DetectSettings
from fewtags.transfer.dense.segmentation import SegmentSettings
from fewtags.transfer.protocols import other_backbone


def detect_protocol(settings: DetectSettings, info: EncoderInfo, *, voc: bool, published: bool) -> str:
    """Compare a detection run on Pascal VOC, or else on COCO, with MLS (ICCV 2023), tables 1 and 4.

    `published`: the photos are those of the protocol (train2017 and val2017; VOC07+12 and test2007).
    """
    usual = VOC if voc else DetectSettings()
    name = (
        "VOC07+12 of MoCo and MLS (ICCV 2023, table 4: Faster R-CNN C4 of detectron2, 24k steps, 11-point AP as here)"
        if voc
        else "Mask R-CNN R50-FPN 1x of MLS (ICCV 2023, table 1: detectron2, 90k steps)"
    )
    same = replace(settings, seed=0, workers=0, heads=usual.heads, masks=usual.masks) == usual
    differs = [
        f"torchvision's {'Mask' if settings.masks else 'Faster'} R-CNN, feature pyramid and {settings.heads} heads",
        "BatchNorm of one process",
        *([] if published else ["other photos"]),
        *other_backbone(info),
        *([] if settings.masks is usual.masks else ["boxes only"]),
        *([] if same else ["other settings"]),
    ]
    return f"protocol: resembles {name}; differs: {', '.join(differs)}."


def segment_protocol(settings: SegmentSettings, info: EncoderInfo, *, cityscapes: bool, stride: int | None) -> str:
    """Compare a segmentation run with MLS (ICCV 2023), table 3.

    `cityscapes`: the photos are those of the protocol, at their own size. An output stride of None is the encoder's.
    """
    usual = SegmentSettings()
    head = "DeepLab" if settings.head == "deeplab" else "FCN"
    differs = [
        f"torchvision's {head} head",
        "no colour augmentation",
        "BatchNorm of one process",
        *([] if cityscapes else ["the data are not Cityscapes at full size"]),
        *other_backbone(info),
        *([] if stride == 8 else ["output stride " + ("of the encoder" if stride is None else str(stride))]),
        *([] if replace(settings, seed=0, workers=0, head="deeplab") == usual else ["other settings"]),
    ]
    return (
        "protocol: resembles mmsegmentation's Cityscapes 512x1024 40k with PSPNet or PSANet, which MLS (ICCV 2023, "
        f"table 3) used; differs: {', '.join(differs)}."
    )
