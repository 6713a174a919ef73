"""From a Hugging Face checkpoint to one quantized GGUF with block-diffusion metadata."""
