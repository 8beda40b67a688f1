"""WHEN tasks run: orders in which the fewest bytes are alive at once."""
