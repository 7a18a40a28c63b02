"""Decoders of JPEGs on the GPU, one library each, and the choice among them by a check at start."""
