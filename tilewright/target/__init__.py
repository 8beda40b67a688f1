"""Facts about machines, as frozen data."""
