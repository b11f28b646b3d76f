"""Trained models for other programs: ONNX files, timm models, and backbones of several libraries."""
