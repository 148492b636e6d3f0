"""Names of rasters: paths, names that GDAL opens, and several files that are one image.

Besides paths, anything GDAL opens is a name: ``https://...``, ``/vsizip/...``, ``netcdf:file.nc:variable``. Several
names joined by ``|`` are one image whose bands are those of the files, one file after the other.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

Name = str | os.PathLike[str]

STACK = "|"
SUFFIXES = (
    *(".tif", ".tiff", ".vrt", ".img", ".jp2", ".j2k", ".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"),
    *(".ntf", ".kea", ".bil", ".bip", ".bsq", ".asc", ".sdat"),
)
_REMOTE = re.compile(r"/vsi[a-z0-9_]+/|[A-Za-z][A-Za-z0-9+.-]+://")
_PART = re.compile(r'(?P<driver>[A-Za-z][A-Za-z0-9_]+):(?P<quote>"?)(?P<file>[^":|]+)(?P=quote)(?P<rest>(:.*)?)')
_CUTS = "_-. "


def is_gdal_name(name: Name) -> bool:
    """Tell whether a name is for GDAL alone to understand: no path on this machine."""
    text = os.fspath(name)
    return bool(_REMOTE.match(text)) or (bool(_PART.fullmatch(text)) and not Path(text).exists())


def members(name: Name) -> list[str]:
    """Return the files of a stack, or the name itself."""
    text = os.fspath(name)
    if STACK not in text or Path(text).exists():
        return [text]
    return [part.strip() for part in text.split(STACK) if part.strip()]


def resolve(name: str, folder: Path) -> Path | str:
    """Return a name with its relative paths taken from a folder: a path, or text for what is no single path."""
    parts = [_resolve_one(part, folder) for part in name.split(STACK) if part.strip()]
    return parts[0] if len(parts) == 1 else STACK.join(map(str, parts))


def _resolve_one(name: str, folder: Path) -> Path | str:
    name = name.strip()
    if _REMOTE.match(name):
        return name
    path = Path(os.path.normpath(folder.absolute() / name))
    part = _PART.fullmatch(name)
    if part is None or path.exists():
        return path
    inner = folder.absolute() / part["file"]
    if not inner.exists():
        return name
    return f'{part["driver"]}:"{os.path.normpath(inner)}"{part["rest"]}'


def local_files(name: Name) -> list[Path]:
    """Return the files on this machine that a name stands for; none for what is remote or missing."""
    found = []
    for member in members(name):
        part = _PART.fullmatch(member)
        for text in [member, *([part["file"]] if part else [])]:
            if not _REMOTE.match(text) and Path(text).is_file():
                found.append(Path(text))
                break
    return found


def key_of(name: Name) -> str:
    """Return text that is equal for names of the same image: links are followed in plain paths."""
    return STACK.join(part if is_gdal_name(part) else str(Path(part).resolve()) for part in members(name))


def stem(name: Name) -> str:
    """Return what an image is called in messages and file names.

    A path's stem; for a part of a file, the file's stem and the part's name; for a stack, what the names of its files
    have in common, or else the name of their folder.
    """
    parts = members(name)
    if len(parts) == 1:
        return _stem_of_one(parts[0])
    common = common_stem([_stem_of_one(part) for part in parts])
    return common or Path(parts[0]).parent.name or _stem_of_one(parts[0])


def common_stem(stems: list[str]) -> str:
    """Return the words that stems begin with alike; `S2_B03` and `S2_B04` give `S2`."""
    length = 0
    while all(len(text) > length and text[length] == stems[0][length] for text in stems):
        length += 1
    common = stems[0][:length]
    if not all(len(text) == len(common) or text[len(common)] in _CUTS for text in stems):
        common = common[: max((common.rfind(mark) for mark in _CUTS), default=-1) + 1]
    return common.rstrip(_CUTS)


def _stem_of_one(name: str) -> str:
    if "://" in name:
        return Path(urlsplit(name.partition("vsicurl/")[2] or name).path).stem
    part = _PART.fullmatch(name)
    if part and not Path(name).exists():
        rest = re.sub(r"\W+", "_", part["rest"]).strip("_")
        return "_".join(filter(None, (Path(part["file"]).stem, rest)))
    return Path(name).stem
