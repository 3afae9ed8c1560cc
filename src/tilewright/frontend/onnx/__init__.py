"""ONNX files: importing this package loads neither `onnx` nor the table of ops."""
