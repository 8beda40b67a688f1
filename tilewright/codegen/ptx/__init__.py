"""Kernels for NVIDIA's GPUs: LLVM IR for its PTX back end, and what a device is told to run."""
