"""The version of fastfeed, in one place."""

__version__ = "0.1.0"
