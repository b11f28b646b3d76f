from dataclasses import replace

from fewtags.engine.encoder_file import EncoderInfo
from fewtags.transfer.dense_protocols import detect_protocol, segment_protocol
from fewtags.transfer.detection import VOC, DetectSettings
from fewtags.transfer.segmentation import SegmentSettings


def info(backbone):
    return EncoderInfo(backbone=backbone, size=224, mean=(0.5,) * 3, std=(0.5,) * 3, method={})


def test_coco_as_close_as_it_gets_only_resembles():
    assert detect_protocol(DetectSettings(), info("resnet50"), voc=False, published=True) == (
        "protocol: resembles Mask R-CNN R50-FPN 1x of MLS (ICCV 2023, table 1: detectron2, 90k steps); differs: "
        "torchvision's Mask R-CNN, feature pyramid and v2 heads, BatchNorm of one process."
    )


def test_coco_with_everything_else():
    settings = DetectSettings(iterations=150, masks=False, heads="v1", seed=3, workers=2)
    said = detect_protocol(settings, info("resnet18.a1_in1k"), voc=False, published=False)
    assert said.endswith(
        "torchvision's Faster R-CNN, feature pyramid and v1 heads, BatchNorm of one process, other photos, the "
        "backbone is resnet18.a1_in1k, not resnet50, boxes only, other settings."
    )


def test_voc_names_its_average_precision():
    said = detect_protocol(replace(VOC, seed=1), info("resnet50"), voc=True, published=True)
    assert said == (
        "protocol: resembles VOC07+12 of MoCo and MLS (ICCV 2023, table 4: Faster R-CNN C4 of detectron2, 24k steps, "
        "11-point AP as here); differs: torchvision's Faster R-CNN, feature pyramid and v2 heads, BatchNorm of one "
        "process."
    )


def test_cityscapes():
    said = segment_protocol(SegmentSettings(workers=4), info("resnet50"), cityscapes=True, stride=8)
    assert said == (
        "protocol: resembles mmsegmentation's Cityscapes 512x1024 40k with PSPNet or PSANet, which MLS (ICCV 2023, "
        "table 3) used; differs: torchvision's DeepLab head here, no change of colours in training, BatchNorm of one "
        "process."
    )


def test_other_segmentation():
    settings = SegmentSettings(iterations=10, head="fcn")
    said = segment_protocol(settings, info("resnet18"), cityscapes=False, stride=None)
    assert said.endswith(
        "torchvision's FCN head here, no change of colours in training, BatchNorm of one process, the data are not "
        "Cityscapes at full size, the backbone is resnet18, not resnet50, output stride of the encoder, other settings."
    )
