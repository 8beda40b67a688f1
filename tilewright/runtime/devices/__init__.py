"""Devices beside the CPU, each with the library that drives it."""
