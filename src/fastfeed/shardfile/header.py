"""Decode one header block of a tar file."""

from __future__ import annotations

BLOCK = 512

_COMPRESSIONS = (
    (b"\x1f\x8b", "gzip"),
    (b"\x1f\x9d", "compress"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    *((bytes([low]) + b"\x2a\x4d\x18", "zstd") for low in range(0x50, 0x60)),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"LZIP", "lzip"),
)


def is_header(block: bytes) -> bool:
    """Compare a block's checksum: the sum of unsigned bytes, or of signed ones as of old."""
    digits = block[148:156].split(b"\0", 1)[0].strip(b" ")
    if not _is_octal(digits):
        return False
    written = int(digits, 8)
    # The field counts itself as spaces.
    unsigned = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if written == unsigned:
        return True
    high = sum(byte > 127 for byte in block[:148] + block[156:])
    return written == unsigned - 256 * high


def parse_size(block: bytes) -> int:
    """Return the size field: octal digits, or base 256 if its first bit is set; or ValueError."""
    field = block[124:136]
    if field[0] & 0x80:
        if field[0] & 0x40:
            raise ValueError("the size in the header is negative")
        return int.from_bytes(bytes([field[0] & 0x3F]) + field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if digits and not _is_octal(digits):
        raise ValueError(f"the size in the header is not a number: {field!r}")
    return int(digits or b"0", 8)


def header_name(block: bytes) -> str:
    """Return the name in a header block, with the prefix of those formats that have one."""
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and block[345]:
        # The star format keeps times in the last bytes of the prefix.
        end = 476 if block[508:512] == b"tar\0" else 500
        name = block[345:end].split(b"\0", 1)[0] + b"/" + name
    return text(name)


def compression_of(start: bytes) -> str | None:
    """Return the name of the compression that a file beginning so has, if it is a known one."""
    return next((name for magic, name in _COMPRESSIONS if start.startswith(magic)), None)


def padded(size: int) -> int:
    """Return the bytes that data of this size takes in a tar: whole blocks."""
    return -(-size // BLOCK) * BLOCK


def text(raw: bytes) -> str:
    """Return the bytes of a name as text; those that are not UTF-8 survive the way back."""
    return raw.decode("utf-8", "surrogateescape")


def _is_octal(digits: bytes) -> bool:
    return bool(digits) and not digits.strip(b"01234567")
