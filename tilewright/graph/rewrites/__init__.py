"""Rewrites of the graph that hold for any machine, and those that prepare operands."""
