"""WHERE values live: lifetimes, and offsets in one arena."""
