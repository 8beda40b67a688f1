"""Operators of model formats that are several of ours, for all front ends."""
