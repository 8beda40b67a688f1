"""Strategies for matrix products: register tiles, cache blocking, packing, attention, recurrence."""
