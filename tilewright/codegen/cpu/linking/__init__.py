"""Linking: relocatable object files become one image, which runs wherever it lies."""
