"""Primitives that make vectors and straight-line code of loops."""
