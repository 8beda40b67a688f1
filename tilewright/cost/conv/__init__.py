"""Convolutions and other windows: algorithm, layout, register tiles of windows, bands of images."""
