"""Quantization recipes: which tensor gets which type."""
