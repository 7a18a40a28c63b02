"""Sizes as people write them, and the number of workers."""

from __future__ import annotations

import pickle

import pytest

from fastfeed.errors import OptionError
from fastfeed.options import AUTO, AutoWorkers, Cache, DecodedCache, parse_size, resolve_workers


@pytest.mark.parametrize(
    ("text", "size"),
    [(5, 5), ("7", 7), ("256MiB", 256 << 20), ("4GB", 4 * 10**9), ("1.5 kib", 1536)],
)
def test_sizes(text, size):
    """Numbers, decimal and binary units."""
    assert parse_size(text, name="size") == size


@pytest.mark.parametrize("text", ["", "x", "-1", 0, "4 gigs", None, True, "0B"])
def test_wrong_sizes_name_the_option(text):
    """Anything else names the option and the way out."""
    with pytest.raises(OptionError, match="shard_size"):
        parse_size(text, name="shard_size")


@pytest.mark.parametrize("folder", [None, 5, ""])
def test_caches_need_a_folder_with_a_name(folder):
    """What names no folder is refused where it is written."""
    with pytest.raises(OptionError, match="names no folder"):
        Cache(folder)
    if folder is not None:  # then it is memory
        with pytest.raises(OptionError, match="names no folder"):
            DecodedCache("1GB", folder)


def test_auto_is_an_int_of_at_least_one_worker():
    """AUTO passes for torch's integer argument, resolves, and survives a copy."""
    assert isinstance(AUTO, int)
    assert resolve_workers(3) == 3
    resolved = resolve_workers(AUTO)
    assert resolved >= 1
    assert isinstance(resolved, AutoWorkers)
    assert isinstance(pickle.loads(pickle.dumps(resolved)), AutoWorkers)
    assert resolve_workers(resolved) == resolved
