"""Other algorithms for the same result: Winograd convolution, reductions in two stages."""
