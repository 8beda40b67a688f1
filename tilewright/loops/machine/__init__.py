"""Kernels for machines with memories, levels and queues of their own: marks on loops, and what machines demand."""
