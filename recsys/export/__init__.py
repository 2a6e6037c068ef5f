"""Exports of a bundle for programs without torch: ONNX."""
