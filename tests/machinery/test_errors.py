"""Errors carry where they happened and survive the way between processes."""

from __future__ import annotations

import pickle

import pytest

from fastfeed import errors
from fastfeed.errors import DecodeError, FastfeedError, located


def test_message_names_place_and_way_out():
    """Step, shard, key, field and offset stand in the message, then the way out."""
    error = DecodeError("not a picture", field="jpg", offset=1536, way_out="Repack it")
    with pytest.raises(DecodeError) as caught, located(shard="a.tar", key="k", field="no"):
        raise error
    text = str(caught.value)
    assert text == (
        "decoding: not a picture [shard 'a.tar', key 'k', field 'jpg', offset 1,536]. Repack it"
    )


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, FastfeedError)
    ],
)
def test_errors_survive_pickling(kind):
    """Every kind keeps its type, text, place and notes."""
    error = kind("fact", shard="s", key="k", way_out="out")
    error.add_note("noted")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.__notes__ == ["noted"]
