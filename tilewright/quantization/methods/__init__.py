"""What makes a quantised layer closer to its float32 form: ranges, smoothing, equalisation, biases, rounding."""
