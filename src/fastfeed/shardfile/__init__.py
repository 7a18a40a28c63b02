"""The shard format without I/O: member names, tar structure, index rows and the manifest."""
