"""Adapters of the operators that layers of networks are."""
