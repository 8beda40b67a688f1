"""Staged programs: models that the host runs part by part."""
