"""The `fastfeed-shard` command and `ShardWriter`: files in, shards that many readers understand out."""
