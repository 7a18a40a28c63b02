"""From sample numbers to bytes: open shards, merge ranges, read them in few large requests."""
