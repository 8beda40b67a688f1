"""Facts about GPUs."""
