"""The engine: state and passes; token ids in, choices out."""
