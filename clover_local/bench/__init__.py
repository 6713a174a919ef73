"""Measuring speed and accuracy, honestly and reproducibly."""
