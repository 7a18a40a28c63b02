"""What is known of a remote shard before it is read, and the name that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xxhash

from fastfeed.storage.open import facts
from fastfeed.storage.urls import unsigned

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


@dataclass(frozen=True, slots=True)
class Source:
    """One remote shard. Two that differ in anything here are two files on the shelf."""

    url: str
    size: int
    """Bytes as stored: of a compressed shard the compressed ones."""
    digest: str | None = None
    """`<algorithm>:<hex digits>` of the whole file, as in the manifest."""
    tag: str | None = None
    """What the storage calls this version of it, such as an ETag."""

    key: str = field(init=False, compare=False, repr=False)
    """The shard's name on the shelf: 32 hexadecimal digits; no text of a URL is a path."""
    name: str = field(init=False, compare=False, repr=False)
    """The key and the size, with which every file of this shard on the shelf begins."""

    def __post_init__(self) -> None:
        """Compute the names once: whoever follows a plan asks for them all the time."""
        # What signs a URL changes from day to day, and the shard does not.
        about = "\n".join((unsigned(self.url), self.digest or "", self.tag or ""))
        key = xxhash.xxh3_128_hexdigest(about.encode("utf-8", "surrogateescape"))
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "name", f"{key}-{self.size}")


def describe(url: str, *, storage_options: Mapping[str, Any] | None = None) -> Source | None:
    """Ask the storage about a shard that no manifest lists; StorageError if that fails.

    None if it says no version: a shard that was replaced could not be told from its copy.
    """
    found = facts(url, storage_options=storage_options)
    if found.size is None or found.tag is None:
        return None
    return Source(url, found.size, tag=found.tag)
