"""Stock llama.cpp on the same file, by llama-cpp-python's low-level calls: the oracle of the causal path."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np

THREADS = 2


@llama.llama_log_callback
def _quiet(level: int, text: bytes, data: object) -> None:
    """llama.cpp's log is not part of a test's output; the callback must outlive the library's use of it."""


class Stock:
    """One context of stock llama.cpp on the CPU."""

    def __init__(self, path: Path, n_ctx: int = 1024) -> None:
        llama.llama_log_set(_quiet, ctypes.c_void_p(0))
        llama.llama_backend_init()
        options = llama.llama_model_default_params()
        options.n_gpu_layers, options.use_extra_bufts = 0, False
        self.model = llama.llama_model_load_from_file(str(path).encode(), options)
        assert self.model, f"stock llama.cpp refused {path}"
        context = llama.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max = n_ctx, 512, 512, 1
        context.n_threads = context.n_threads_batch = THREADS
        context.flash_attn_type, context.no_perf = 1, True
        context.type_k = context.type_v = 1  # f16
        self.context = llama.llama_init_from_model(self.model, context)
        assert self.context
        self.vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.batch = llama.llama_batch_init(512, 0, 1)
        self.past = 0

    def decode(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits [rows, vocab] of tokens appended to the context."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = int(token), self.past + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
        assert llama.llama_decode(self.context, batch) == 0
        self.past += len(tokens)
        out = llama.llama_get_logits(self.context)
        return np.ctypeslib.as_array(out, (len(tokens), self.vocab)).copy()

    def close(self) -> None:
        llama.llama_batch_free(self.batch)
        llama.llama_free(self.context)
        llama.llama_model_free(self.model)
