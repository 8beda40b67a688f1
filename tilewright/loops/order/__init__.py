"""Primitives that change the order of iterations."""
