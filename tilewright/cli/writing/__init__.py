"""Commands that write a model as something else: an artefact, a library, ONNX, or in smaller types."""
