"""Primitives that decide, move or remove conditions."""
