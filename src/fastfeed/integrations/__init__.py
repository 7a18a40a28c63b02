"""What makes trainers keep our loader, where they build loaders of their own from it."""
