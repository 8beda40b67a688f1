"""Fusion: which operators become one kernel."""
