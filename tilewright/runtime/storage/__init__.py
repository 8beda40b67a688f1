"""Artefacts in files, and loading their machine code."""
