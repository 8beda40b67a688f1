"""Quantised tensors: what is computed on integers, and the form that the machine multiplies these in."""
