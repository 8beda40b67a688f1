"""Primitives that change where and how elements are stored."""
