"""llama.cpp's own functions, for its tokenizer and as the baseline. Importing llama_cpp installs a log of its
own that prints; it is replaced by ours here, so everybody takes `llama` from this module."""

import ctypes

import llama_cpp.llama_cpp as llama

from clover_local.ggml import lib

__all__ = ["llama"]

llama.llama_log_set(lib.on_log, ctypes.c_void_p(0))  # llama.cpp hands it down to ggml
