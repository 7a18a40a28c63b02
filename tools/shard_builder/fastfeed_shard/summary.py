"""What a command says when it has written a data set."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fastfeed_shard.browse import shown
from fastfeed_shard.progress import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastfeed_shard.packing import Packed


def summary(packed: Sequence[Packed], *, seconds: float) -> Iterator[str]:
    """Yield lines about the shards of a data set."""
    samples = sum(shard.entry.samples for shard in packed)
    nbytes = sum(shard.entry.bytes for shard in packed)
    stored = sum(shard.entry.file_bytes for shard in packed)
    smaller = f" as {size_text(stored)}" if stored != nbytes else ""
    yield (
        f"{samples:,} samples in {len(packed):,} shards, {size_text(nbytes)}{smaller}, "
        f"{seconds:.2f} s, {size_text(nbytes / seconds)}/s"
    )
    fields: Counter[str] = Counter()
    for shard in packed:
        fields.update(shard.fields)
    yield "fields: " + ", ".join(f"{shown(name)} ({fields[name]:,})" for name in sorted(fields))
