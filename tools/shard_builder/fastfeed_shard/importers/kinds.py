"""What a value is, told by its type and its first bytes: the last part of a field's name."""

from __future__ import annotations

from typing import Any

from fastfeed_shard.decode import PICTURES

_MAGIC = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"\x93NUMPY", "npy"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\x1a\x45\xdf\xa3", "webm"),
)
# Four bytes after the first four or eight of these tell the format.
_RIFF = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}
_BOXES = {b"avif": "avif", b"avis": "avif", b"heic": "heic", b"M4A ": "m4a"}
_TEXTS = frozenset({"txt", "cls", "text", "transcript"})
_OTHERS = frozenset({"json", "npy", "bin", "heic", "flac", "ogg", "mp3", "webm", "wav", "mp4"})

KINDS = PICTURES | _TEXTS | _OTHERS
"""What a column may be called to keep its name."""


def kind_of(value: Any) -> str:
    """Return the kind of a value: `jpg`, `txt`, `json`, `npy`, ..., or `bin` for other bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _kind_of_bytes(bytes(value[:16]))
    if isinstance(value, bool | dict | list | tuple):
        return "json"
    return "npy" if hasattr(value, "__array__") else "txt"


def _kind_of_bytes(start: bytes) -> str:
    for magic, kind in _MAGIC:
        if start.startswith(magic):
            return kind
    if start[:4] == b"RIFF":
        return _RIFF.get(start[8:12], "bin")
    if start[:2] == b"BM" and start[6:10] == bytes(4):
        return "bmp"
    if start[4:8] == b"ftyp":
        return _BOXES.get(start[8:12], "mp4")
    return "bin"
