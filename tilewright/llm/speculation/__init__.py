"""Tokens that are guessed and looked at together: the text is what it is without, and may come sooner."""
