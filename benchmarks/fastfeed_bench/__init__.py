"""fastfeed-bench: one interleaved run of fastfeed and its peers on the same work."""
