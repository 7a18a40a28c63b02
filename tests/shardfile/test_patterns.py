"""Patterns of shard names."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.errors import OptionError
from fastfeed.shardfile.patterns import expand


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{008..010}.tar", ["a-008.tar", "a-009.tar", "a-010.tar"]),
        ("a-{8..10}.tar", ["a-8.tar", "a-9.tar", "a-10.tar"]),
        ("{a,b}/{0..1}.tar", ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]),
        ("a.tar::b-{0..1}.tar", ["a.tar", "b-0.tar", "b-1.tar"]),
        ("a{,x}.tar", ["a.tar", "ax.tar"]),
        ("a{x}.tar", ["a{x}.tar"]),
        ("a{0..0}", ["a0"]),
    ],
)
def test_patterns(pattern, names):
    """Ranges keep their padding, alternatives multiply, `::` joins."""
    assert expand(pattern) == names


def test_numbers_of_a_large_data_set():
    """Ten thousand shards expand to ten thousand names, in order."""
    names = expand("train-{000000..009999}.tar")
    assert (len(names), names[-1]) == (10_000, "train-009999.tar")


@pytest.mark.parametrize(
    "pattern",
    ["", "a::", "a{0..1", "a0..1}", "{{0..1}}", "a{5..1}", "pipe:cat a.tar", "${HOME}/a.tar",
     "a{0..99999999999}", "{0..9999}{0..9999}", "{0..999999}{0..999999}"],
)  # fmt: skip
def test_bad_patterns(pattern):
    """Malformed, endless and executable patterns are refused before they cost anything."""
    with pytest.raises(OptionError):
        expand(pattern)


@given(st.text(alphabet="a{},.0:$", max_size=12))
def test_any_text_is_a_list_or_an_option_error(pattern):
    """No pattern raises anything else."""
    with suppress(OptionError):
        assert expand(pattern)
