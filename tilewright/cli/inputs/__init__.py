"""Inputs and outputs of models on the command line."""
