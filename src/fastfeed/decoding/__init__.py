"""Bytes of a field into a row of the batch: crop drawn first, only the crop decoded."""
