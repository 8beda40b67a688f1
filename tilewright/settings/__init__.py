"""What the programs of one compilation share, and where their operators run."""
