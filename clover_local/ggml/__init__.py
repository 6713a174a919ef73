"""The bottom: a typed ctypes binding of the ggml libraries inside llama-cpp-python."""
