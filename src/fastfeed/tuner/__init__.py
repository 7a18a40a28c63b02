"""Controllers of a running loader: what share the GPU decodes, and how many workers there are."""
