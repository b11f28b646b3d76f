"""Real photos in the published layout of files, so that the protocols of `fewtags bench` can be tried at small scale.

    python benchmarks/published_layout.py OUT --data ../shared/data

makes OUT with MS-COCO 2014 and 2017 (414 photos of `coco_small`, 300 train and 114 val; Hill's lists of these photos),
Objects365 (the same photos with its names), Pascal VOC 2007 and 2012 (`voc_mix`), and Cityscapes (CamVid frames, whose
11 classes have their numbers in Cityscapes). Photos are links, except the frames of Cityscapes, which are PNG files.
docs/paper_protocols.md has the commands. The numbers say nothing about the papers.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from photo_sets import DATA, REPOSITORY

TRAIN = 300
"""Photos of COCO that are its training part; the others are val."""
CAMVID = (23, 11, 17, 7, 8, 21, 20, 13, 26, 24, 25, 0)
"""Numbers in Cityscapes of CamVid's classes: sky, building, pole, road, pavement, tree, sign, fence, car, pedestrian,
bicyclist, unlabelled."""
FRAMES = 40
"""Frames of each part of Cityscapes."""
VOC = {("VOC2012", "trainval"): 400, ("VOC2007", "trainval"): 200, ("VOC2007", "test"): 200}
"""Photos of each part of Pascal VOC."""
LISTS = ("full", "0.75left", "0.4left", "singlelabel")
Content = dict[str, Any]


def write_text(path: Path, text: str) -> None:
    """Write a file, and make the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def link(path: Path, target: Path) -> None:
    """Make a link to a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(target.resolve())


def stored(content: Content) -> Content:
    """The annotations of `coco_small` in pixels of its photos, which are smaller than the published ones."""
    images, scale = [], {}
    for image in content["images"]:
        scale[image["id"]] = image["stored_width"] / image["width"]
        images.append({**image, "width": image["stored_width"], "height": image["stored_height"]})
    annotations = []
    for one in content["annotations"]:
        factor = scale[one["image_id"]]
        drawn = one.get("segmentation") or []
        made = {**one, "bbox": [factor * x for x in one["bbox"]], "area": factor**2 * one["area"]}
        made["segmentation"] = [[factor * x for x in ring] for ring in drawn] if isinstance(drawn, list) else []
        annotations.append(made)
    return {**content, "images": images, "annotations": annotations}


def part(content: Content, images: Sequence[Content], names: Mapping[int, str]) -> str:
    """The JSON of some images under other names."""
    annotations = [one for one in content["annotations"] if one["image_id"] in names]
    renamed = [{**image, "file_name": names[image["id"]]} for image in images]
    return json.dumps({**content, "images": renamed, "annotations": annotations})


def coco(data: Path, out: Path) -> None:
    """MS-COCO 2014 and 2017, Hill's lists, and Objects365."""
    source = data / "coco_small"
    content = stored(json.loads((source / "instances.json").read_text("utf-8")))
    images = sorted(content["images"], key=lambda image: str(image["id"]))
    for split, own in (("train", images[:TRAIN]), ("val", images[TRAIN:])):
        for year, name in (("2014", "COCO_{split}2014_{id:012}.jpg"), ("2017", "{id:012}.jpg")):
            names = {image["id"]: name.format(split=split, id=image["id"]) for image in own}
            write_text(out / f"annotations/instances_{split}{year}.json", part(content, own, names))
            for image in own:
                link(out / f"{split}{year}" / names[image["id"]], source / "images" / image["file_name"])
        names = {image["id"]: f"images/v1/patch0/objects365_v1_{image['id']:08}.jpg" for image in own}
        write_text(out / f"annotations/zhiyuan_objv2_{split}.json", part(content, own, names))
        for image in own:
            link(out / names[image["id"]], source / "images" / image["file_name"])
    kept = {f"COCO_train2014_{image['id']:012}.jpg" for image in images[:TRAIN]}
    for name in LISTS:
        file = f"coco_train_{name}.txt"
        lines = gzip.decompress((data / "annotations" / f"{file}.gz").read_bytes()).decode().splitlines(keepends=True)
        write_text(out / "lists" / file, "".join(line for line in lines if line.partition(",")[0] in kept))


def voc(data: Path, out: Path) -> None:
    """VOC2007 (trainval, test) and VOC2012 (trainval; its halves are train and val)."""
    source = data / "voc_mix"
    content = json.loads((source / "instances.json").read_text("utf-8"))
    classes = {category["id"]: category["name"] for category in content["categories"]}
    boxes = defaultdict(list)
    for one in content["annotations"]:
        boxes[one["image_id"]].append(one)
    listed: dict[tuple[str, str], list[tuple[str, set[str]]]] = defaultdict(list)
    left = dict(VOC)
    for image in content["images"]:
        if not left[place := (image["voc"], image["voc_split"])]:
            continue
        left[place] -= 1
        base, name = out / "VOCdevkit" / image["voc"], image["voc_id"]
        link(base / "JPEGImages" / f"{name}.jpg", source / "images" / image["file_name"])
        objects = []
        for one in boxes[image["id"]]:
            x, y, width, height = one["bbox"]
            sides = {"xmin": x + 1, "ymin": y + 1, "xmax": x + width, "ymax": y + height}
            box = "".join(f"<{key}>{value:.1f}</{key}>" for key, value in sides.items())
            class_ = classes[one["category_id"]]
            objects.append(f"<object><name>{class_}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>")
        size = f"<size><width>{image['width']}</width><height>{image['height']}</height><depth>3</depth></size>"
        xml = f"<annotation><filename>{name}.jpg</filename>{size}{''.join(objects)}</annotation>"
        write_text(base / "Annotations" / f"{name}.xml", xml)
        shown = {classes[one["category_id"]] for one in boxes[image["id"]]}
        halves = ("train", "val")[left[place] % 2 :][:1] if image["voc"] == "VOC2012" else ()
        for split in (image["voc_split"], *halves):
            listed[image["voc"], split].append((name, shown))
    for (year, split), rows in listed.items():
        folder = out / "VOCdevkit" / year / "ImageSets/Main"
        write_text(folder / f"{split}.txt", "".join(f"{name}\n" for name, _ in rows))
        for class_ in classes.values():
            lines = [f"{name} {1 if class_ in shown else -1:2d}\n" for name, shown in rows]
            write_text(folder / f"{class_}_{split}.txt", "".join(lines))


def cityscapes(data: Path, out: Path) -> None:
    """The first frames of CamVid's parts train and val."""
    number = np.array(CAMVID, np.uint8)
    for split in ("train", "val"):
        for path in sorted((data / "camvid_small" / split / "images").glob("*.jpg"))[:FRAMES]:
            image, mask = (
                out / "cityscapes" / folder / split / "cambridge" / f"{path.stem}_{end}.png"
                for folder, end in (("leftImg8bit", "leftImg8bit"), ("gtFine", "gtFine_labelIds"))
            )
            for file in (image, mask):
                file.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(path) as photo, Image.open(path.parents[1] / "masks" / f"{path.stem}.png") as classes:
                photo.save(image)
                Image.fromarray(number[np.asarray(classes)]).save(mask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=REPOSITORY / DATA)
    options = parser.parse_args()
    for make in (coco, voc, cityscapes):
        make(options.data, options.out)


if __name__ == "__main__":
    main()
