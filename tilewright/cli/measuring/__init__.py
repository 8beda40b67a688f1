"""Commands that measure a model on this machine."""
