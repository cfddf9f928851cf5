"""The ONNX engine: sentence encoders through onnxruntime, ids in, vectors out."""
