"""Models of random shapes, made with onnx alone, beside what they must compute in float64."""
