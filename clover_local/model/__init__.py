"""What the network is: its numbers, its weights and its passes as ggml graphs."""
