"""C11 that any compiler takes: kernels, the programs that call them, and the scalar functions that they need."""
