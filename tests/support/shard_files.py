"""The same photos in all kinds of places: a folder, a tar file, Parquet files, and these in fsspec's memory."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

KINDS = ("folder", "tar", "rows", "struct", "memory-folder", "memory-tar", "memory-struct")


def png(seed: int, size: tuple[int, int] = (20, 24)) -> bytes:
    """A photo of random pixels."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (*size, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def member(name: str, size: int = 0, **more: object) -> tarfile.TarInfo:
    """The header of a file in a tar file."""
    info = tarfile.TarInfo(name)
    info.size = size
    for key, value in more.items():
        setattr(info, key, value)
    return info


def tar_bytes(files: Mapping[str, bytes], *more: tarfile.TarInfo) -> bytes:
    """A tar file of files, and of headers without data after them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            archive.addfile(member(name, len(content)), io.BytesIO(content))
        for info in more:
            archive.addfile(info)
    return out.getvalue()


def parquet_bytes(columns: Mapping[str, object], group: int = 2, metadata: Mapping[str, str] | None = None) -> bytes:
    """A Parquet file with small row groups."""
    out = io.BytesIO()
    pq.write_table(pa.table(dict(columns)).replace_schema_metadata(metadata), out, row_group_size=group)
    return out.getvalue()


def make_source(kind: str, files: Mapping[str, bytes], folder: Path) -> str:
    """Write photos in one of `KINDS`; return the place to give to a command, below which the names are those given."""
    place = f"memory://{folder.name}" if kind.startswith("memory-") else str(folder / "made")
    contents = [*files.values()]
    if kind.endswith("tar"):
        made = {".tar": tar_bytes(files)}
    elif kind == "rows":
        made = {".parquet": parquet_bytes({"label": [0] * len(files), "image": contents, "file_name": [*files]})}
    elif kind.endswith("struct"):
        rows = [{"bytes": content, "path": name} for name, content in files.items()]
        made = {".parquet": parquet_bytes({"image": rows})}
    else:
        made = {f"/{name}": content for name, content in files.items()}
    for end, content in made.items():
        if kind.startswith("memory-"):
            fsspec.filesystem("memory").pipe_file(f"/{folder.name}{end}", content)
        else:
            Path(place + end).parent.mkdir(parents=True, exist_ok=True)
            Path(place + end).write_bytes(content)
    return place if kind.endswith("folder") else place + next(iter(made))
