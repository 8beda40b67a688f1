"""Chains of kernels that are computed some rows at a time, so that no whole tensor lies between them."""
