"""Analyses of loop nests: bounds, dependences, the region of a buffer that is touched."""
