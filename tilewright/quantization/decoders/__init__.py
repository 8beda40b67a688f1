"""Smaller weights for language models, with a promise: how often the most likely token stays the same."""
