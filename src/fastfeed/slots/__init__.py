"""Memory shared with the trainer: lent with each batch, returned when its last tensor dies."""
