"""Read damaged label files of every format: `labels.py [COUNT [SEED]]`. Each must give a table or one error of ours."""

import io
import json
import random
import shutil
import tarfile
import tempfile
import traceback
import warnings
from pathlib import Path

import pyarrow
import pyarrow.parquet
from forked import Tally, count_argument, watched
from PIL import Image

from fewtags.errors import FewtagsError
from fewtags.formats.read import read
from fewtags.table.storage import save
from photos import mutate

NAMES = [f"{n}.jpg" for n in range(4)]
VOC = (
    "<annotation><filename>{}</filename><size><width>40</width><height>30</height><depth>3</depth></size>"
    "<object><name>cat</name><difficult>0</difficult><bndbox><xmin>2</xmin><ymin>3</ymin><xmax>20</xmax><ymax>25</ymax>"
    "</bndbox></object><object><name>dog</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    "</object></annotation>"
)
CVAT = (
    "<annotations><version>1.1</version><meta><task><labels><label><name>cat</name></label><label><name>dog</name>"
    "</label></labels></task></meta>{}</annotations>"
)
CVAT_IMAGE = (
    '<image id="{0}" name="{1}" width="40" height="30"><box label="cat" xtl="1" ytl="2" xbr="20" ybr="22" occluded="0">'
    '</box><polygon label="dog" points="1,2;5,9;8,3" occluded="0"></polygon></image>'
)


def labelstudio() -> str:
    """Return a small export of Label Studio."""
    box = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0, "rectanglelabels": ["cat"]}
    region = {"from_name": "label", "to_name": "image", "type": "rectanglelabels", "original_width": 40}
    choice = {"from_name": "c", "to_name": "image", "type": "choices", "value": {"choices": ["dog"]}}
    return json.dumps(
        [
            {
                "id": n,
                "data": {"image": f"/data/upload/1/{name}"},
                "annotations": [{"id": n, "result": [{**region, "original_height": 30, "value": box}, choice]}],
            }
            for n, name in enumerate(NAMES)
        ]
    )


def coco() -> str:
    """Return a small COCO file."""
    return json.dumps(
        {
            "images": [{"id": n, "file_name": name, "width": 40, "height": 30} for n, name in enumerate(NAMES)],
            "categories": [{"id": 1, "name": "cat"}, {"id": 7, "name": "dog"}],
            "annotations": [
                {
                    "id": n,
                    "image_id": n % 4,
                    "category_id": (1, 7)[n % 2],
                    "bbox": [1, 2, 9, 8],
                    "area": 72,
                    "iscrowd": 0,
                }
                for n in range(6)
            ],
        }
    )


def taxonomy() -> str:
    """Return a small export of Label Studio with a taxonomy and a rating."""
    entry = {"from_name": "t", "to_name": "image", "type": "taxonomy"}
    rating = {"from_name": "r", "to_name": "image", "type": "rating", "value": {"rating": 3}}
    chosen = [["animal", "dog"], ["plant"]]
    return json.dumps(
        [
            {
                "id": n,
                "data": {"image": name},
                "annotations": [{"id": n, "result": [{**entry, "value": {"taxonomy": chosen[: 1 + n % 2]}}, rating]}],
            }
            for n, name in enumerate(NAMES)
        ]
    )


def labelme(name: str) -> str:
    """Return the file of LabelMe for a photo."""
    places = {"polygon": [[1, 2], [9, 2], [5, 8]], "rectangle": [[1, 2], [9, 8]], "circle": [[5, 5], [8, 5]]}
    shapes = [{"label": "cat", "shape_type": kind, "points": points, "flags": {}} for kind, points in places.items()]
    flags = {"night": True, "blurred": False}
    return json.dumps(
        {"version": "5.4", "imagePath": name, "imageHeight": 30, "imageWidth": 40, "shapes": shapes, "flags": flags}
    )


def datumaro() -> str:
    """Return a small file of Datumaro."""
    places = [
        {"type": "label", "label_id": 0},
        {"type": "bbox", "label_id": 1, "bbox": [1, 2, 9, 8]},
        {"type": "polygon", "label_id": 0, "points": [1, 2, 9, 2, 5, 8]},
    ]
    items = [
        {"id": name[:-4], "annotations": places, "image": {"path": name, "size": [30, 40]}, "attr": {}}
        for name in NAMES
    ]
    names = [{"name": "cat", "parent": "", "attributes": []}, {"name": "dog", "parent": "", "attributes": []}]
    return json.dumps({"info": {}, "categories": {"label": {"labels": names}}, "items": items})


def write_all(folder: Path) -> dict[str, tuple[Path, list[Path]]]:
    """Write a set in every format; return by format what to read, and its files."""
    images = folder / "images"
    images.mkdir()
    for n, name in enumerate(NAMES):
        Image.new("RGB", (40, 30), (n * 40, 10, 10)).save(images / name)
    texts = {
        "columns/a.csv": "image,cat,dog\n" + "".join(f"{n},1,{i % 2}\n" for i, n in enumerate(NAMES)),
        "tags/a.csv": "image,tags\n" + "".join(f'{n},"cat;dog"\n' for n in NAMES),
        "points/a.csv": "image,class,x_px,y_px\n" + "".join(f"{n},cat,20,9\n" for n in NAMES),
        "boxes/a.csv": "image,class,x0,y0,x1,y1\n" + "".join(f"{n},cat,0.1,0.2,0.5,0.6\n" for n in NAMES),
        "coco/a.json": coco(),
        "labelstudio/a.json": labelstudio(),
        "cvat/a.xml": CVAT.format("".join(CVAT_IMAGE.format(n, name) for n, name in enumerate(NAMES))),
        "taxonomy/a.json": taxonomy(),
        "datumaro/a.json": datumaro(),
        "metadata/metadata.jsonl": "".join(f'{{"file_name": "{n}", "labels": ["cat", "dog"]}}\n' for n in NAMES),
        "celeba/list_attr_celeba.txt": "4\nBald Smiling Young\n" + "".join(f"{n}  1 -1  1\n" for n in NAMES),
        "numbered/a.csv": "image,tag1,tag2\n" + "".join(f"{n},cat,dog\n" for n in NAMES),
        "yolo/data.yaml": "path: .\ntrain: images\nnames:\n  0: cat\n  1: dog\n",
        "voc/ImageSets/Main/train.txt": "0\n1\n2\n3\n",
        "openimages/class-descriptions-boxable.csv": "/m/01,cat\n/m/02,dog\n",
        "openimages/train-annotations-human-imagelabels.csv": "ImageID,Source,LabelName,Confidence\n"
        + "".join(f"{n},verification,/m/0{1 + n % 2},{n % 2}\n" for n in range(4)),
        "openimages/train-annotations-bbox.csv": "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,"
        "IsTruncated,IsGroupOf,IsDepiction,IsInside\n"
        + "".join(f"{n},xclick,/m/01,1,0.1,0.5,0.2,0.6,0,0,0,0,0\n" for n in range(4)),
    }
    texts |= {f"voc/Annotations/{n}.xml": VOC.format(name) for n, name in enumerate(NAMES)}
    outline = "<polygon><x1>2</x1><y1>3</y1><x2>20</x2><y2>3</y2><x3>9</x3><y3>25</y3></polygon>"
    box = VOC[VOC.index("<bndbox>") : VOC.index("</object>")]
    texts |= {f"outlines/Annotations/{n}.xml": VOC.replace(box, outline, 1).format(m) for n, m in enumerate(NAMES)}
    texts |= {f"labelme/{n}.json": labelme(name) for n, name in enumerate(NAMES)}
    texts |= {f"yolo/labels/{n}.txt": "0 0.5 0.5 0.2 0.2\n1 0.3 0.3 0.1 0.1\n" for n in range(4)}
    for place, text in texts.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, "utf-8")
    for name, target in (("voc", "JPEGImages"), ("outlines", "JPEGImages"), ("yolo", "images")):
        shutil.copytree(images, folder / name / target)
    (folder / "shards").mkdir()
    with tarfile.open(folder / "shards" / "a.tar", "w") as archive:
        for n, name in enumerate(NAMES):
            archive.add(images / name, name)
            text = json.dumps({"tags": ["cat", "dog"][: 1 + n % 2]}).encode()
            member = tarfile.TarInfo(f"{n}.json")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    (folder / "rows").mkdir()
    photos = [{"bytes": (images / name).read_bytes(), "path": name} for name in NAMES]
    pyarrow.parquet.write_table(
        pyarrow.table({"image": photos, "tags": [["cat"], ["dog"]] * 2}), folder / "rows/a.parquet"
    )
    (folder / "parquet").mkdir()
    save(read(folder / "boxes" / "a.csv", images=images), folder / "parquet" / "a.parquet")
    found = {}
    for name in sorted({Path(place).parts[0] for place in [*texts, "parquet/a", "shards/a", "rows/a"]}):
        files = [p for p in sorted((folder / name).rglob("*")) if p.is_file() and p.suffix != ".jpg"]
        found[name] = (files[0] if len(files) == 1 else folder / name, files)
    return found


PIECES = [b'""', b"null", b"[]", b"{}", b"-1", b"1e999", b"NaN", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"'", b'"']
PIECES += [
    b",",
    b";",
    b"\n",
    b"\r",
    b"<",
    b"&x;",
    b"../../x",
    b"!!python/object:x",
    b"\x1b[31m",
    "\u202e".encode(),
    b"%",
]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Change bytes, put a troublesome piece somewhere, or remove or repeat a line."""
    kind = rng.randrange(4)
    if kind == 0:
        return mutate(content, rng)
    at = rng.randrange(len(content) + 1)
    if kind == 1:
        end = at + rng.choice((0, 0, 1, 5))
        return content[:at] + rng.choice(PIECES) * rng.choice((1, 1, 1, 300)) + content[end:]
    lines = content.splitlines(keepends=True) or [b""]
    line = rng.randrange(len(lines))
    lines[line : line + 1] = [] if kind == 2 else [lines[line]] * 2
    return b"".join(lines)


def main() -> None:
    """Run the script."""
    count, rng = count_argument(2000)
    tally = Tally("damaged label files")
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        formats = write_all(folder)
        for place, _ in formats.values():
            assert len(read(place, images=folder / "images")) == len(NAMES), place
        for _ in range(count):
            format, (place, files) = rng.choice([*formats.items()])
            file = rng.choice(files)
            whole = file.read_bytes()
            changed = mutated(whole, rng)
            file.write_bytes(changed)
            try:
                table = read(place, images=folder / "images")
                table.summary()
                tally.check(True, "")
            except FewtagsError as error:
                tally.check(bool(str(error)), f"{format}: an error without a text")
            except SystemExit:
                raise
            except BaseException:
                tally.check(False, f"{format} {file.name} {changed[:3000]!r}", traceback.format_exc())
            finally:
                file.write_bytes(whole)
    tally.end()


if __name__ == "__main__":
    watched(main)
