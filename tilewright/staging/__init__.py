"""Staging: a graph whose sizes depend on data becomes parts of native code, and steps of the host between them."""
