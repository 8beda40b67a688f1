"""Runs compiled models: artefact files, native code, threads, memory. Imports nothing of the compiler."""
