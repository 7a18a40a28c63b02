"""Plain torchrun and DistributedDataParallel: two ranks share every epoch evenly."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest


@pytest.fixture(scope="module")
def ranks(two_ranks, number_shards):
    """What each of two ranks was given."""
    return two_ranks("plain_ranks.py", number_shards)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("data", "count"), [("map 24", 24), ("map 21", 21), ("shards", 24)])
def test_c57_c59_ranks_share_the_data(ranks, data, count, workers):
    """As many batches on each; all samples, none twice but what fills up the last round."""
    first, second = (rank[f"{data} {workers}"] for rank in ranks)
    for a, b in zip(first, second, strict=True):
        assert [len(batch) for batch in a] == [len(batch) for batch in b]
        seen = Counter(chain(*a, *b))
        assert set(seen) == set(range(count))
        assert seen.total() == count + count % 2
    assert first[0] != first[1]


def test_c59_a_loader_older_than_the_process_group(ranks):
    """Shards are split by the group that there is when an epoch begins."""
    first, second = (rank["shards before the group"] for rank in ranks)
    for a, b in zip(first, second, strict=True):
        assert sorted(chain(*a, *b)) == list(range(24))
        assert len(a) == len(b) == 4
