"""Building blocks that several strategies use."""
