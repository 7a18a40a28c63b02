"""Sizes as people write them, and the number of workers."""

from __future__ import annotations

import argparse
import copy
import json
import logging
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


def test_auto_prints_as_it_was_written():
    """In words it is AUTO, for arithmetic and formats of numbers the int that it is."""
    for auto, number in ((AUTO, 1), (AutoWorkers(7), 7)):
        assert [repr(auto), str(auto), f"{auto}", "%s" % auto] == ["AUTO"] * 4  # noqa: UP031
        assert [f"{auto:d}", "%d" % auto, json.dumps(auto)] == [str(number)] * 3  # noqa: UP031
        assert auto == number
        assert hash(auto) == hash(number)
        assert type(auto + 1) is int
        for twin in (copy.deepcopy(auto), pickle.loads(pickle.dumps(auto))):
            assert isinstance(twin, AutoWorkers)
            assert (twin, repr(twin)) == (number, "AUTO")


def test_auto_as_a_default_of_arguments(caplog):
    """Command lines and logs show it as it was written, and give it on as it is."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--workers", type=int, default=AUTO, help="how many")
    assert "(default: AUTO)" in parser.format_help()
    assert parser.parse_args([]).workers is AUTO
    assert type(parser.parse_args(["--workers", "1"]).workers) is int
    with caplog.at_level("INFO"):
        logging.getLogger("a trainer").info("num_workers=%s, %r", AUTO, {"workers": AUTO})
    assert caplog.messages == ["num_workers=AUTO, {'workers': AUTO}"]
