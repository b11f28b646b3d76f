"""Stand-ins of the data sets of the protocols: a few small photos in the published layout of files."""

import json
from pathlib import Path

import numpy as np
from annotated import write_text
from PIL import Image

COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))
SIZE = (60, 40)
COCO_CLASSES = [{"id": i + 1 + i // 7, "name": f"class {i:02}"} for i in range(80)]  # 80 ids with gaps, as COCO's
VOC_CLASSES = ("aeroplane", "bicycle", "bird")
WORDNET = ("n01440764", "n01443537", "n01484850")


def boxes_of(i, rng):
    """One or two of three classes, each with its box (x, y, width, height)."""
    return [(c, (6 + 30 * n, 5, 20, 30)) for n, c in enumerate(rng.permutation(3)[: 1 + i % 2].tolist())]


def photo(path: Path, boxes) -> None:
    """A photo with a coloured rectangle for each object."""
    pixels = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    for c, (x, y, w, h) in boxes:
        pixels[y : y + h, x : x + w] = COLOURS[c]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "JPEG", quality=90)


def coco_part(root: Path, names, file: str, *, seed: int, masks: bool = True) -> None:
    """A COCO JSON and its photos. Of masks, the polygon is the lower left half of the box."""
    rng = np.random.default_rng(seed)
    images, annotations = [], []
    for i, (stored, name) in enumerate(names):
        boxes = boxes_of(i, rng)
        photo(root / stored, boxes)
        images.append({"id": 9 + 3 * i, "file_name": name, "width": SIZE[0], "height": SIZE[1]})
        for c, (x, y, w, h) in boxes:
            record = {"id": len(annotations) + 1, "image_id": 9 + 3 * i, "category_id": COCO_CLASSES[c]["id"]}
            record |= {"bbox": [x, y, w, h], "iscrowd": 0}
            if masks:
                record["segmentation"] = [[x, y, x + w, y + h, x, y + h]]
            annotations.append(record)
    content = {"images": images, "annotations": annotations, "categories": COCO_CLASSES}
    write_text(root / file, json.dumps(content))


def coco(root: Path, train: int = 20, val: int = 12) -> None:
    """annotations/instances_train2014.json, train2014/COCO_train2014_000000000009.jpg, and val2014 likewise."""
    for seed, (split, count) in enumerate((("train2014", train), ("val2014", val))):
        names = [f"COCO_{split}_{9 + 3 * i:012}.jpg" for i in range(count)]
        coco_part(root, [(f"{split}/{n}", n) for n in names], f"annotations/instances_{split}.json", seed=seed)


def hill(root: Path) -> None:
    """lists/coco_train_full.txt and the thinner lists, with the positions of COCO's categories as numbers."""
    content = json.loads((root / "annotations/instances_train2014.json").read_text())
    number = {category["id"]: n for n, category in enumerate(COCO_CLASSES)}
    rows = {image["id"]: (image["file_name"], []) for image in content["images"]}
    for annotation in content["annotations"]:
        rows[annotation["image_id"]][1].append(number[annotation["category_id"]])
    for name, most in (("full", 9), ("0.75left", 2), ("0.4left", 1), ("singlelabel", 1)):
        lines = [f"{file}, {' '.join(map(str, sorted(numbers)[:most]))}\n" for file, numbers in rows.values()]
        write_text(root / f"lists/coco_train_{name}.txt", "".join(lines))


def voc(root: Path, train: int = 20, val: int = 10) -> None:
    """VOCdevkit/VOC2012 with Annotations, JPEGImages and ImageSets/Main; some objects are difficult."""
    base, rng = root / "VOCdevkit/VOC2012", np.random.default_rng(5)
    for split, count in (("train", train), ("val", val)):
        names = [f"2008_{(1000 if split == 'val' else 0) + 7 * i:06}" for i in range(count)]
        states = {c: [] for c in VOC_CLASSES}
        for i, name in enumerate(names):
            boxes = boxes_of(i, rng)
            photo(base / f"JPEGImages/{name}.jpg", boxes)
            hard = [n == 1 and i % 5 == 0 for n in range(len(boxes))]
            objects = [
                f"<object><name>{VOC_CLASSES[c]}</name><difficult>{int(d)}</difficult><bndbox><xmin>{x + 1}</xmin>"
                f"<ymin>{y + 1}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax></bndbox></object>"
                for (c, (x, y, w, h)), d in zip(boxes, hard, strict=True)
            ]
            size = f"<size><width>{SIZE[0]}</width><height>{SIZE[1]}</height><depth>3</depth></size>"
            text = f"<annotation><filename>{name}.jpg</filename>{size}{''.join(objects)}</annotation>"
            write_text(base / f"Annotations/{name}.xml", text)
            shown = {VOC_CLASSES[c]: 0 if d else 1 for (c, _), d in zip(boxes, hard, strict=True)}
            for class_ in VOC_CLASSES:
                states[class_].append(f"{name} {shown.get(class_, -1):2d}\n")
        write_text(base / f"ImageSets/Main/{split}.txt", "".join(f"{name}\n" for name in names))
        for class_, lines in states.items():
            write_text(base / f"ImageSets/Main/{class_}_{split}.txt", "".join(lines))


def nus(root: Path, train: int = 15, val: int = 8) -> None:
    """nuswide/formatted_train_images.npy and labels, val likewise, photos in Flickr/; every fifth has no label."""
    rng = np.random.default_rng(6)
    for split, count in (("train", train), ("val", val)):
        names, labels = [], np.zeros((count, 81))
        for i in range(count):
            boxes = [] if i % 5 == 4 else boxes_of(i, rng)
            names.append(f"actor/{split}_{i:04}.jpg")
            photo(root / "nuswide/Flickr" / names[-1], boxes)
            labels[i, [c for c, _ in boxes]] = 1
        np.save(root / f"nuswide/formatted_{split}_images.npy", np.array(names))
        np.save(root / f"nuswide/formatted_{split}_labels.npy", labels)


def cub(root: Path, count: int = 24, attributes: int = 312) -> None:
    """CUB_200_2011/images.txt, attributes/, train_test_split.txt, and attributes.txt beside the folder."""
    base, rng = root / "CUB_200_2011", np.random.default_rng(7)
    write_text(root / "attributes.txt", "".join(f"{a} has_colour::{a}\n" for a in range(1, attributes + 1)))
    names, rows, splits = [], [], []
    for i in range(1, count + 1):
        boxes = boxes_of(i, rng)
        names.append(f"{i} 001.Bird/Bird_{i:04}.jpg\n")
        photo(base / f"images/001.Bird/Bird_{i:04}.jpg", boxes)
        shown = {c + 1 for c, _ in boxes}
        rows += [f"{i} {a} {int(a in shown)} 3 1.5\n" for a in range(1, attributes + 1)]
        splits.append(f"{i} {int(i % 3 > 0)}\n")
    write_text(base / "images.txt", "".join(names))
    write_text(base / "train_test_split.txt", "".join(splits))
    write_text(base / "attributes/image_attribute_labels.txt", "".join(rows))


def imagenet(root: Path, train: int = 4, val: int = 12) -> None:
    """train/n01440764/..., val/n01440764/ILSVRC2012_val_00000001.JPEG, and real.json; the last list is empty."""
    rng, real = np.random.default_rng(8), []
    for c, name in enumerate(WORDNET):
        for i in range(train):
            photo(root / f"train/{name}/{name}_{i}.JPEG", [(c, (10, 5, 30, 30))])
    for i in range(val):
        boxes = boxes_of(i, rng)
        photo(root / f"val/{WORDNET[boxes[0][0]]}/ILSVRC2012_val_{i + 1:08}.JPEG", boxes)
        real.append([] if i == val - 1 else [c for c, _ in boxes])
    write_text(root / "real.json", json.dumps(real))


def objects365(root: Path, train: int = 24, val: int = 12) -> None:
    """annotations/zhiyuan_objv2_train.json with names images/v1/patch0/objects365_v1_00000000.jpg, v2 likewise."""
    for seed, (split, count) in enumerate((("train", train), ("val", val))):
        names = [f"images/v{1 + i % 2}/patch{i % 3}/objects365_v{1 + i % 2}_{seed}{i:07}.jpg" for i in range(count)]
        file = f"annotations/zhiyuan_objv2_{split}.json"
        coco_part(root, [*zip(names, names, strict=True)], file, seed=seed, masks=False)
