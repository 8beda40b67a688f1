"""Fuzzers of what reads files: models, and artefacts. Nothing in them may cause more than an error of the package."""
