"""What is known of a remote shard before it is read, and the name that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from fastfeed.storage.urls import unsigned


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

    @property
    def key(self) -> str:
        """The shard's name on the shelf: 32 hexadecimal digits; no text of a URL is a path."""
        # What signs a URL changes from day to day, and the shard does not.
        about = "\n".join((unsigned(self.url), self.digest or "", self.tag or ""))
        return xxhash.xxh3_128_hexdigest(about.encode("utf-8", "surrogateescape"))

    @property
    def name(self) -> str:
        """The key and the size, with which every file of this shard on the shelf begins."""
        return f"{self.key}-{self.size}"
