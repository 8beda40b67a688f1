"""What decides: metrics with confidence bounds, measured times, and the choice among them."""
