"""Contractions: the model of their cycles, register tiles, cache blocks, and panels of columns."""
