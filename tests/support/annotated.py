"""One small set of photos with boxes, written in every format that `fewtags` reads.

A new reader joins the contract suite (tests/contract/test_readers.py) with one `Writer` in `WRITERS`.
"""

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pictures import with_orientation
from PIL import Image

from fewtags.labels import ClassNames, Label
from fewtags.table.storage import save
from fewtags.table.table import LabelTable

CLASSES = ("cat", "dog", "owl")


@dataclass(frozen=True)
class Photo:
    """A photo and what its annotation says.

    Attributes:
        name: file name without extension.
        size: width and height that the annotation declares, in pixels.
        boxes: (class, x0, y0, x1, y1) in pixels of this size.
        split: "train", "val", "test", or "" for none.
    """

    name: str
    size: tuple[int, int]
    boxes: Sequence[tuple[str, float, float, float, float]]
    split: str = ""

    @property
    def fractions(self) -> list[tuple[str, tuple[float, float, float, float]]]:
        """The class and corners of each box, in fractions."""
        w, h = self.size
        return [(name, (x0 / w, y0 / h, x1 / w, y1 / h)) for name, x0, y0, x1, y1 in self.boxes]


PHOTOS = (
    Photo("a", (80, 40), [("cat", 8, 4, 40, 20), ("cat", 40, 20, 72, 36), ("dog", 0, 0, 80, 40)]),
    Photo("b", (40, 60), [("dog", 10, 15, 20, 30)]),
    Photo("c", (50, 50), [("owl", 5, 5, 45, 25)]),
    Photo("d", (30, 20), []),
)


def save_photo(file: Path, size: tuple[int, int], content: int = 0, orientation: int = 1) -> None:
    """Write a photo that is displayed with this size; EXIF turns it there if the orientation says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    stored = size[::-1] if orientation >= 5 else size
    Image.new("L", stored, content).save(file, "JPEG", exif=with_orientation(orientation))


def write_text(file: Path, text: str) -> Path:
    """Write a text file, with its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    return file


def _folder(root: Path, photos: Sequence[Photo]) -> Path:
    """Photos move from images/ into class folders; one with several classes is copied."""
    tree = root / "tree"
    for photo in photos:
        data = (root / "images" / f"{photo.name}.jpg").read_bytes()
        for name in {name for name, *_ in photo.boxes} or {""}:
            file = tree / photo.split / name / f"{photo.name}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    return tree


def _csv(root: Path, photos: Sequence[Photo]) -> Path:
    named = any(photo.split for photo in photos)
    rows = [f"image,{'split,' if named else ''}class,state,x0,y0,x1,y1"]
    for photo in photos:
        start = f"{photo.name}.jpg" + (f",{photo.split}" if named else "")
        rows += [f"{start},{name},1,{','.join(map(str, box))}" for name, box in photo.fractions] or [f"{start},,,,,,"]
    return write_text(root / "labels.csv", "\n".join(rows) + "\n")


def _coco(root: Path, photos: Sequence[Photo]) -> Path:
    images = [
        {"id": i, "file_name": f"{p.name}.jpg", "width": p.size[0], "height": p.size[1], "split": p.split}
        for i, p in enumerate(photos)
    ]
    boxes = [(i, box) for i, photo in enumerate(photos) for box in photo.boxes]
    annotations = [
        {"id": k, "image_id": i, "category_id": CLASSES.index(name), "bbox": [x0, y0, x1 - x0, y1 - y0]}
        for k, (i, (name, x0, y0, x1, y1)) in enumerate(boxes)
    ]
    categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    return write_text(root / "coco.json", json.dumps(content))


def _voc(root: Path, photos: Sequence[Photo]) -> Path:
    for photo in photos:
        objects = [
            f"<object><name>{name}</name><bndbox><xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax>"
            f"<ymax>{y1}</ymax></bndbox></object>"
            for name, x0, y0, x1, y1 in photo.boxes
        ]
        size = f"<size><width>{photo.size[0]}</width><height>{photo.size[1]}</height></size>"
        text = f"<annotation>{size}{''.join(objects)}</annotation>"
        write_text(root / "Annotations" / f"{photo.name}.xml", text)
        if photo.split:
            file = root / "ImageSets/Main" / f"{photo.split}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as stream:
                stream.write(f"{photo.name}\n")
    return root


def _yolo(root: Path, photos: Sequence[Photo]) -> Path:
    """YOLO has its splits in folders, so the photos move there."""
    for photo in photos:
        rows = [
            f"{CLASSES.index(name)} {(x0 + x1) / 2} {(y0 + y1) / 2} {x1 - x0} {y1 - y0}\n"
            for name, (x0, y0, x1, y1) in photo.fractions
        ]
        write_text(root / "labels" / photo.split / f"{photo.name}.txt", "".join(rows))
        file = root / "images" / f"{photo.name}.jpg"
        if photo.split and file.exists():
            (file.parent / photo.split).mkdir(exist_ok=True)
            file.rename(file.parent / photo.split / file.name)
    return write_text(root / "data.yaml", f"names: [{', '.join(CLASSES)}]\n").parent


def _openimages(root: Path, photos: Sequence[Photo]) -> Path:
    """The split is in the names of the files."""
    for split in {photo.split for photo in photos}:
        rows = ["ImageID,Source,LabelName,Confidence,XMin,YMin,XMax,YMax"]
        for photo in photos:
            if photo.split == split:
                rows += [f"{photo.name},xclick,{name},1,{','.join(map(str, box))}" for name, box in photo.fractions]
        write_text(root / f"{split}-boxes.csv", "\n".join(rows) + "\n")
    write_text(root / "names.csv", "LabelName,DisplayName\n" + "".join(f"{name},{name}\n" for name in CLASSES))
    return root


def _labelstudio(root: Path, photos: Sequence[Photo]) -> Path:
    tasks = []
    for number, photo in enumerate(photos):
        result = [
            {
                "id": f"r{i}",
                "type": "rectanglelabels",
                "original_width": photo.size[0],
                "original_height": photo.size[1],
                "value": {
                    "x": 100 * x0,
                    "y": 100 * y0,
                    "width": 100 * (x1 - x0),
                    "height": 100 * (y1 - y0),
                    "rectanglelabels": [name],
                },
            }
            for i, (name, (x0, y0, x1, y1)) in enumerate(photo.fractions)
        ]
        tasks.append({"id": number, "data": {"image": f"{photo.name}.jpg"}, "annotations": [{"result": result}]})
    return write_text(root / "tasks.json", json.dumps(tasks))


def _cvat(root: Path, photos: Sequence[Photo]) -> Path:
    images = []
    for i, photo in enumerate(photos):
        shapes = [
            f'<box label="{name}" xtl="{x0}" ytl="{y0}" xbr="{x1}" ybr="{y1}"/>' for name, x0, y0, x1, y1 in photo.boxes
        ]
        w, h = photo.size
        start = f'<image id="{i}" name="{photo.name}.jpg" subset="{photo.split}" width="{w}" height="{h}">'
        images.append(f"{start}{''.join(shapes)}</image>")
    return write_text(root / "annotations.xml", f"<annotations>{''.join(images)}</annotations>")


def _datumaro(root: Path, photos: Sequence[Photo]) -> Path:
    labels = [{"name": name, "parent": "", "attributes": []} for name in CLASSES]
    for subset in {photo.split or "default" for photo in photos}:
        items = []
        for photo in photos:
            if (photo.split or "default") == subset:
                boxes = [
                    {"type": "bbox", "label_id": CLASSES.index(name), "bbox": [x0, y0, x1 - x0, y1 - y0]}
                    for name, x0, y0, x1, y1 in photo.boxes
                ]
                image = {"path": f"{photo.name}.jpg", "size": [*photo.size[::-1]]}
                items.append({"id": photo.name, "annotations": boxes, "image": image})
        content = {"info": {}, "categories": {"label": {"labels": labels}}, "items": items}
        write_text(root / f"annotations/{subset}.json", json.dumps(content))
    return root


def _labelme(root: Path, photos: Sequence[Photo]) -> Path:
    """Splits are folders of the files; the paths of photos are those of Windows."""
    for photo in photos:
        shapes = [
            {"label": name, "points": [[x1, y1], [x0, y0]], "shape_type": "rectangle", "flags": {}}
            for name, x0, y0, x1, y1 in photo.boxes
        ]
        folder = f"labels/{photo.split}" if photo.split else "labels"
        image = f"{'..' + chr(92)}{('..' + chr(92)) * bool(photo.split)}images{chr(92)}{photo.name}.jpg"
        content = {"version": "5.0.1", "flags": {}, "shapes": shapes, "imagePath": image, "imageData": None}
        content |= {"imageHeight": photo.size[1], "imageWidth": photo.size[0]}
        write_text(root / folder / f"{photo.name}.json", json.dumps(content))
    return root


def _metadata(root: Path, photos: Sequence[Photo]) -> Path:
    lines = []
    for p in photos:
        boxes = [[x0, y0, x1 - x0, y1 - y0] for _, x0, y0, x1, y1 in p.boxes]
        objects = {"bbox": boxes, "categories": [name for name, *_ in p.boxes]}
        record = {"file_name": f"{p.name}.jpg", "width": p.size[0], "height": p.size[1], "objects": objects}
        lines.append(json.dumps(record | ({"split": p.split} if p.split else {})))
    return write_text(root / "images/metadata.jsonl", "\n".join(lines))


def _shards(root: Path, photos: Sequence[Photo]) -> Path:
    (root / "shards").mkdir()
    with tarfile.open(root / "shards/photos-000.tar", "w") as archive:
        for p in photos:
            boxes = [{"bbox": [x0, y0, x1 - x0, y1 - y0], "category": name} for name, x0, y0, x1, y1 in p.boxes]
            record = {"width": p.size[0], "height": p.size[1], "objects": boxes}
            text = json.dumps(record | ({"split": p.split} if p.split else {})).encode()
            archive.add(root / f"images/{p.name}.jpg", f"{p.name}.jpg")
            member = tarfile.TarInfo(f"{p.name}.json")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return root / "shards"


def _tagfiles(root: Path, photos: Sequence[Photo]) -> Path:
    """Splits are folders, so the photos move there."""
    for photo in photos:
        file = root / "images" / f"{photo.name}.jpg"
        write_text(
            file.parent / photo.split / f"{photo.name}.txt", ", ".join(dict.fromkeys(n for n, *_ in photo.boxes))
        )
        file.rename(file.parent / photo.split / file.name)
    return root / "images"


def _parquet(root: Path, photos: Sequence[Photo]) -> Path:
    rows = [(i, CLASSES.index(name), box) for i, photo in enumerate(photos) for name, box in photo.fractions]
    table = LabelTable.build(
        [f"{photo.name}.jpg" for photo in photos],
        ClassNames.of(CLASSES),
        image=np.array([i for i, _, _ in rows], np.int64),
        class_=np.array([c for _, c, _ in rows], np.int64),
        state=np.full(len(rows), Label.POSITIVE),
        locations=np.array([box for *_, box in rows]),
        root=root / "images",
        split=[photo.split for photo in photos] if any(photo.split for photo in photos) else None,
    )
    save(table, root / "table.parquet")
    return root / "table.parquet"


def _numbers(photo: Photo) -> list[int]:
    return sorted({CLASSES.index(name) for name, *_ in photo.boxes})


def _hill(root: Path, photos: Sequence[Photo]) -> Path:
    write_text(root / "classes.txt", "\n".join(CLASSES))
    lines = [f"{photo.name}.jpg, {' '.join(map(str, _numbers(photo)))}\n" for photo in photos]
    return write_text(root / "list.txt", "".join(lines))


def _real(root: Path, photos: Sequence[Photo]) -> Path:
    """The lists are in the order of the names of the photos."""
    write_text(root / "classes.txt", "\n".join(CLASSES))
    ordered = sorted(photos, key=lambda photo: photo.name)
    return write_text(root / "real.json", json.dumps([_numbers(photo) for photo in ordered]))


def _nuswide(root: Path, photos: Sequence[Photo]) -> Path:
    write_text(root / "ConceptsList/Concepts81.txt", "".join(f"{name}\r\n" for name in CLASSES))
    for split in {photo.split for photo in photos}:
        own = [photo for photo in photos if photo.split == split]
        title, end = split.title(), f"_{split.title()}" * bool(split)
        write_text(root / f"ImageList/{title}Imagelist.txt", "".join(f"{photo.name}.jpg\r\n" for photo in own))
        for c, name in enumerate(CLASSES):
            folder = "TrainTestLabels" if split else "Groundtruth/AllLabels"
            column = "".join(f"{int(c in _numbers(photo))}\n" for photo in own)
            write_text(root / folder / f"Labels_{name}{end}.txt", column)
    return root


def _cub(root: Path, photos: Sequence[Photo]) -> Path:
    write_text(root / "attributes.txt", "".join(f"{c} {name}\n" for c, name in enumerate(CLASSES, 1)))
    write_text(root / "images.txt", "".join(f"{i} {photo.name}.jpg\n" for i, photo in enumerate(photos, 1)))
    rows = [
        f"{i} {c + 1} {int(c in _numbers(photo))} 3 27.7{' 0' * (i == 1)}\n"
        for i, photo in enumerate(photos, 1)
        for c in range(len(CLASSES))
    ]
    write_text(root / "attributes/image_attribute_labels.txt", "".join(rows))
    return root


@dataclass(frozen=True, kw_only=True)
class Writer:
    """How the photos are written in a format, and what the format can say.

    Attributes:
        write: writes annotations of photos in ROOT/images; returns the path to read.
        located: whether labels have boxes.
        declares_size: whether the annotation declares the size of a photo.
        splits: whether it names splits.
        silent: whether it can name a photo about which nothing is stated.
        looks_for_photos: whether the reader looks for the photos that the annotation names.
        broken: an edit (file name pattern, old text, new text) that breaks one box or label of photo "b".
    """

    write: Callable[[Path, Sequence[Photo]], Path]
    located: bool = True
    declares_size: bool = True
    splits: bool = True
    silent: bool = True
    looks_for_photos: bool = True
    broken: tuple[str, str, str] | None = field(default=None)


WRITERS = {
    "folder": Writer(write=_folder, located=False, declares_size=False, looks_for_photos=False),
    "csv": Writer(write=_csv, declares_size=False, broken=("labels.csv", "0.25,0.25,0.5,0.5", "0.25,x,0.5,0.5")),
    "coco": Writer(write=_coco, broken=("coco.json", "[10, 15, 10, 15]", '[10, "x", 10, 15]')),
    "voc": Writer(write=_voc, broken=("Annotations/b.xml", "<xmin>11</xmin>", "<xmin>x</xmin>")),
    "yolo": Writer(write=_yolo, declares_size=False, broken=("labels/b.txt", "1 0.375", "1 x")),
    "openimages": Writer(
        write=_openimages,
        declares_size=False,
        silent=False,
        broken=("*-boxes.csv", "0.25,0.25,0.5,0.5", "0.25,x,0.5,0.5"),
    ),
    "labelstudio": Writer(write=_labelstudio, splits=False, broken=("tasks.json", '"x": 25.0, "y"', '"x": "?", "y"')),
    "cvat": Writer(write=_cvat, broken=("annotations.xml", 'xtl="10"', 'xtl="x"')),
    "datumaro": Writer(write=_datumaro, broken=("annotations/*.json", "[10, 15, 10, 15]", '[10, "x", 10, 15]')),
    "labelme": Writer(write=_labelme, broken=("labels/b.json", "[20, 30]", '["x", 30]')),
    "metadata": Writer(write=_metadata, broken=("images/*.jsonl", "[10, 15, 10, 15]", '[10, "x", 10, 15]')),
    "tagfiles": Writer(write=_tagfiles, located=False, declares_size=False, looks_for_photos=False),
    "shards": Writer(write=_shards, declares_size=False, looks_for_photos=False),
    "hill": Writer(
        write=_hill, located=False, declares_size=False, splits=False, broken=("list.txt", "b.jpg, 1", "b.jpg, x")
    ),
    "real": Writer(
        write=_real,
        located=False,
        declares_size=False,
        splits=False,
        looks_for_photos=False,
        broken=("real.json", "[0, 1], [1]", '[0, 1], ["x"]'),
    ),
    "nuswide": Writer(
        write=_nuswide, located=False, declares_size=False, broken=("**/Labels_owl.txt", "0\n0\n1\n0", "0\nx\n1\n0")
    ),
    "cub": Writer(
        write=_cub, located=False, declares_size=False, splits=False, broken=("attributes/image*.txt", "2 2 1", "2 2 x")
    ),
    "parquet": Writer(write=_parquet, declares_size=False, looks_for_photos=False),
}
"""How each format is written, by its name in `FORMATS`."""
