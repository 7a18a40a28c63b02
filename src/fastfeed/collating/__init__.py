"""Samples into the memory of a batch, and a batch's tree into a small message."""
