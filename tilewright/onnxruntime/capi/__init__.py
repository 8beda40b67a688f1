"""The modules below `onnxruntime.capi` that clients import from."""
