"""The simulator of accelerators."""
