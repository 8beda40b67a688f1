"""Strategies for convolutions: sliding windows, Winograd, windows fused into a convolution."""
