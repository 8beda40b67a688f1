"""Code generation for CPUs through LLVM."""
