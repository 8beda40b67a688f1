"""Smaller types for the layers of a model, chosen by measured time and measured loss (`tilewright.quantize`).

Imported only when it is used: a program that compiles and runs models needs nothing of it.
"""
