"""What computes operators of a model and is no code of ours: kernels of whole operators, and compilers of vendors."""
