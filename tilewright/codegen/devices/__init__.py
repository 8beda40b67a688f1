"""What code for all devices shares: how kernels and launches are described to what runs them."""
