"""Kernels of GPUs of NVIDIA."""
