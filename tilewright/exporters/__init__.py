"""Graphs written in the formats of others: the counterpart of `frontends`."""
