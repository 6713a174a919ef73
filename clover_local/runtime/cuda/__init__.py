"""Our own CUDA kernels for whole passes; nothing here is imported unless a pass runs on them."""
