"""Plain, denoise and self-speculative decoding over an engine; token ids only."""
