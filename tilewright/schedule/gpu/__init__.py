"""Forms of kernels for GPUs."""
