"""Layouts: which tensors are stored in blocks of channels, and how operators compute on these."""
