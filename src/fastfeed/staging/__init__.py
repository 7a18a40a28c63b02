"""Bring the next shards near: a shelf on a local disk, filled ahead of the readers by the plan."""
