"""Find photos by their id: their name without the extension, anywhere in a folder."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fewtags.errors import DataError
from fewtags.formats.common import is_hidden
from fewtags.formats.locate import ImageKeys, check_images, folder_of, is_photo
from fewtags.formats.openimages_files import ANNOTATION_FOLDERS
from fewtags.table.table import Excluded, Notes
from fewtags.text import counted, quoted, setting, some

_DEPTH = 2


def photos_by_id(ids: Sequence[str], path: Path, images: Path | None) -> ImageKeys:
    """Find the photos anywhere in a folder by their id, which is their name without the extension."""
    check_images(images)
    above = Path(os.path.normpath(path.absolute())) if path.is_dir() else folder_of(path)
    likely = [above, above.parent] if above.name in ANNOTATION_FOLDERS else [above]
    wanted = {*ids}
    for root in likely if images is None else [images]:
        found, repeated = _search(root, wanted, None if images is not None else _DEPTH)
        if found:
            break
    else:
        if images is not None:
            raise DataError(
                f"no photo in {quoted(str(images))} has the name of an image of {path}, such as {ids[0]}.jpg."
            )
        message = f"photos: none found beside the file; give {setting('images', 'FOLDER')} to use them"
        return ImageKeys([f"{i}.jpg" for i in ids], np.arange(len(ids)), None, Notes(messages=(message,)))
    here = [i for i in ids if i in found]
    position = {key: i for i, key in enumerate(here)}
    messages = [f"photos: {root}"] if images is None else []
    gone = [i for i in ids if i not in found]
    excluded = (Excluded(f"{some(gone, 3)}", f"photo not found in {root}", str(path), "partial"),) if gone else ()
    if gone:
        messages.append(f"{path.name}: {len(gone):,} of {len(ids):,} images left out: their photos do not exist")
    if repeated:
        messages.append(
            f"{path.name}: {counted(repeated, 'photo exists', 'photos exist')} more than once; the first is used"
        )
    image = np.fromiter((position.get(i, -1) for i in ids), np.int64, len(ids))
    return ImageKeys([found[i] for i in here], image, root, Notes((), excluded, tuple(messages)))


def _search(root: Path, wanted: set[str], depth: int | None) -> tuple[dict[str, str], int]:
    """Return the key of each wanted photo below a folder, and the number of photos that exist more than once."""
    spelt = {unicodedata.normalize("NFC", name): name for name in wanted}
    found: dict[str, str] = {}
    repeated = 0
    for parent, folders, names in os.walk(root):
        inside = Path(parent).relative_to(root)
        shown = [] if depth is not None and len(inside.parts) >= depth else folders
        folders[:] = sorted(name for name in shown if not is_hidden(name))
        for name in sorted(filter(is_photo, names)):
            if stem := spelt.get(unicodedata.normalize("NFC", name.rpartition(".")[0])):
                repeated += stem in found
                found.setdefault(stem, (inside / name).as_posix())
    return found, repeated
