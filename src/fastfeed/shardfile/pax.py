"""The records of pax extension headers, as far as they change what a member is."""

from __future__ import annotations

from dataclasses import dataclass

# Marks of a member stored without its holes: GNU's formats 0.0, 0.1 and 1.0, and Solaris' own.
_SPARSE_KEYS = ("GNU.sparse.", "SUN.holesdata")


@dataclass(slots=True)
class Overrides:
    """What extension headers say of the member after them; None where they are silent."""

    name: str | None = None
    link: str | None = None
    size: int | None = None
    sparse: bool = False
    sparse_name: str | None = None
    """The name a sparse member really has; its pax path is a stand-in."""

    def over(self, common: Overrides) -> Overrides:
        """Return these overrides, completed from those that hold for all members."""
        name = self.sparse_name or self.name
        return Overrides(
            name=common.name if name is None else name,
            link=common.link if self.link is None else self.link,
            size=common.size if self.size is None else self.size,
            sparse=self.sparse or common.sparse,
        )


def parse_records(body: bytes, *, into: Overrides) -> None:
    r"""Read records of the form `<length> <key>=<value>\n` into `into`.

    Keys that change neither name, size nor kind are checked for form and dropped, so that hostile
    headers cannot fill the memory. Raises ValueError if a record is malformed.
    """
    position = 0
    while position < len(body):
        space = body.find(b" ", position, position + 20)
        digits = body[position:space] if space > 0 else b""
        if not digits.isdigit():
            raise ValueError("no length")
        end = position + int(digits)
        if not space < end <= len(body) or body[end - 1 : end] != b"\n":
            raise ValueError("wrong length")
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not equals or not key:
            raise ValueError("no key")
        _apply(key.decode("utf-8", "surrogateescape"), value, into)
        position = end


def _apply(key: str, value: bytes, into: Overrides) -> None:
    if key.startswith(_SPARSE_KEYS):
        into.sparse = True
        if key == "GNU.sparse.name":
            into.sparse_name = _name(key, value)
    elif key == "path":
        into.name = _name(key, value)
    elif key == "linkpath":
        into.link = _name(key, value)
    elif key == "size":
        if value and not (value.isdigit() and len(value.lstrip(b"0")) < 20):
            raise ValueError("the size is not a number")
        into.size = int(value) if value else None


def _name(key: str, value: bytes) -> str | None:
    """Return a name; an empty one takes back what an earlier record said."""
    if b"\0" in value:
        raise ValueError(f"{key} holds a zero byte")
    return value.decode("utf-8", "surrogateescape") or None
