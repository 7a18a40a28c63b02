"""The benchmarks by name; each module describes its cases and how equal work is told."""
