"""Which names every reader of shards understands, and how the others can be rewritten.

DALI splits its index at white space, webdataset skips `__names__`, and tars differ in how they
store what is not ASCII. So keys are printable ASCII without spaces, and their base names hold no
dots: the first dot ends the key. `docs/shards.md` lists the rules.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from urllib.parse import quote

from fastfeed.errors import OptionError
from fastfeed.shardfile.names import is_contained, split_name
from fastfeed.shardfile.tar import ustar_header

_KEY = re.compile(r"[!-\[\]-~]+")
_COMPONENT = re.compile(r"[A-Za-z_][A-Za-z0-9_+-]*")
_LAST = re.compile(r"[A-Za-z0-9_+-]+")
_NAME_BYTES = 100
# Most keys, told at one look: no dots, no hidden parts, no __parts__.
_PLAIN = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_-]*(?:/[A-Za-z0-9-][A-Za-z0-9_-]*)*")


def why_unsafe(key: str, field: str) -> str | None:
    """Say why some reader would misread the member `key.field`; None if none would."""
    if not _is_field(field):
        return f"{field!r} does not look like a field: is a dot part of the key?"
    plain = len(key) + len(field) < _NAME_BYTES and _PLAIN.fullmatch(key)
    return None if plain else _why_unsafe_key(key, field)


def _why_unsafe_key(key: str, field: str) -> str | None:
    if not _KEY.fullmatch(key):
        return "the key is not printable ASCII without spaces and backslashes"
    if not is_contained(key):
        return "the key is not a relative path without '.' and '..'"
    name = f"{key}.{field}"
    if split_name(name) != (key, field.lower()):
        return "the key has a dot in its base name, or a part that is hidden or like __this__"
    if len(name) > _NAME_BYTES:
        try:
            ustar_header(name, 0)
        except OptionError as error:
            return error.fact
    return None


@lru_cache(1024)
def _is_field(field: str) -> bool:
    *middle, last = field.split(".")
    return bool(_LAST.fullmatch(last)) and all(map(_COMPONENT.fullmatch, middle))


def split_loosely(base: str) -> tuple[str, str]:
    """Split a base name into stem and field, leaving to the stem what cannot be of a field.

    `22.05.png` is `22.05` and `png`; `x.seg.png` is `x` and `seg.png`.
    """
    stem, *components = base.split(".")
    cut = 0
    for number, component in enumerate(components[:-1], 1):
        if not _COMPONENT.fullmatch(component):
            cut = number
    return ".".join([stem, *components[:cut]]), ".".join(components[cut:])


def rename_key(key: str) -> str:
    """Rewrite a key in percent signs and hexadecimal digits, so that `unquote` gives it back."""
    parts = [quote(os.fsencode(part), safe="!$&'()*+,:;=@[]^`{}~") for part in key.split("/")]
    parts[-1] = parts[-1].replace(".", "%2E")
    reserved = (len(part) >= 4 and part.startswith("__") and part.endswith("__") for part in parts)
    return "/".join(
        f"%5F{part[1:]}" if like_this else part
        for part, like_this in zip(parts, reserved, strict=True)
    )


def refuse_unsafe(offenders: list[tuple[str, str]], *, way_out: str) -> None:
    """Raise OptionError that shows the first (name, reason) of names that are not safe, if any."""
    if not offenders:
        return
    offenders = sorted(offenders)
    shown = "; ".join(f"{name!r} ({reason})" for name, reason in offenders[:5])
    more = f"; and {len(offenders) - 5:,} more" if len(offenders) > 5 else ""
    raise OptionError(f"some readers would misread these names: {shown}{more}", way_out=way_out)
