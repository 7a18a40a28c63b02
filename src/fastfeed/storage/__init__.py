"""Where shards live, and how their bytes are reached by position."""
