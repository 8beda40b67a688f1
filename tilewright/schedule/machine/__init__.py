"""Strategies for accelerators, derived from the facts of a machine."""
