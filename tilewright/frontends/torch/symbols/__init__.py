"""Sizes of exported programs, and what these take for granted of them."""
