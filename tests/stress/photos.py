"""Read photos with damaged bytes: `photos.py [COUNT [SEED]]`. Each must give pixels or one error about the file."""

import io
import random
import tempfile
import traceback
import warnings
from pathlib import Path

import numpy as np
from forked import Tally, count_argument, watched
from PIL import Image

from fewtags.photos.scan import scan

FORMATS = {
    "jpg": [{"quality": 80}, {"progressive": True}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}],
    "png": [{}, {"compress_level": 0}],
    "gif": [{}],
    "bmp": [{}],
    "webp": [{}, {"lossless": True}],
    "tiff": [{}, {"compression": "tiff_lzw"}, {"compression": "jpeg"}],
    "jp2": [{}],
    "ppm": [{}],
    "avif": [{}],
}
MODES = {"jpg": ("RGB", "L", "CMYK"), "png": ("RGB", "RGBA", "P", "L"), "tiff": ("RGB",), "webp": ("RGB", "RGBA")}


def seeds() -> list[tuple[str, bytes]]:
    """Make small photos in every format."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 32, 3)).astype(np.uint8)
    found = []
    for ending, options in FORMATS.items():
        for mode in MODES.get(ending, ("RGB",)):
            for option in options:
                target = io.BytesIO()
                name = {"jpg": "JPEG", "jp2": "JPEG2000", "tiff": "TIFF"}.get(ending, ending.upper())
                Image.fromarray(noise).convert(mode).save(target, name, **option)
                found.append((ending, target.getvalue()))
    return found


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Change a few bytes, or cut, repeat, remove or overwrite a part."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(max(1, len(data)))
        if rng.random() < 0.5:  # headers are short and rich in meaning
            at = rng.randrange(min(len(data), 200) or 1)
        length = rng.choice((1, 2, 4, 16, 100))
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length]
        elif kind == 4:
            data[at : at + length] = rng.choice((b"\0", b"\xff")) * length
        else:
            del data[at + rng.randrange(1 + len(data) - at) :]
    return bytes(data)


def main() -> None:
    """Run the script."""
    count, rng = count_argument(2000)
    tally, whole = Tally("damaged photos"), seeds()
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as name:
        for _ in range(count):
            ending, content = rng.choice(whole)
            path = Path(name) / f"a.{ending}"
            changed = mutate(content, rng)
            path.write_bytes(changed)
            try:
                scan([str(path)], threads=1)
            except SystemExit:
                raise
            except BaseException:
                tally.check(False, f"{ending} {changed[:4000].hex()}", traceback.format_exc())
            else:
                tally.check(True, "")
    tally.end()


if __name__ == "__main__":
    watched(main)
