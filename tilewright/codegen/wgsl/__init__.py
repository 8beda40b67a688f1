"""Compute shaders of WebGPU: kernels of the loops level as WGSL, and what a device is told to run."""
