"""Slot -> GPU: batches copied beside the training step, pictures decoded there."""
