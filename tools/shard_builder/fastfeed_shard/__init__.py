"""The `fastfeed-shard` command and `ShardWriter`: files in, shards for many readers out."""
