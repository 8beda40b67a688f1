"""The program around the kernels: entry points, thread pool, parallel tasks."""
