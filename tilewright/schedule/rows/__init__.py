"""Strategies for reductions of rows and elementwise work on the same rows."""
