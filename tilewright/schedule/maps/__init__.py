"""Strategies for elementwise kernels and for operators with loops of their own."""
