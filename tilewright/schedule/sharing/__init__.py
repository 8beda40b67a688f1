"""From regions to kernels: equal regions share one kernel; kernels that run concurrently."""
