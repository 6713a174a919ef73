"""Stock llama.cpp on the same file: the baseline every figure is held against, one token at a time."""

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from clover_local.errors import CloverError
from clover_local.ggml.gguf import GgufFile
from clover_local.ggml.lib import functions, last_error
from clover_local.ggml.llama import llama

BATCH = 512
BESIDE = 1200 << 20  # video memory that it takes beside weights and cache: about so much, before it was tried
ATTEMPTS = 4


class Stock:
    """A model in stock llama.cpp with one sequence of up to `n_ctx` tokens; close it after use.

    `gpu` is the number of the GPU that holds all of it, None for the CPU alone; the experts of `n_cpu_moe` layers
    stay with the CPU, as with the option of that name.
    """

    def __init__(
        self, path: str | Path, *, n_ctx: int, threads: int, gpu: int | None, n_cpu_moe: int = 0
    ) -> None:
        self._model = self._context = None
        self.n_cpu_moe = n_cpu_moe
        llama.llama_backend_init()
        params, self._overrides = _model_params(gpu), _overrides(n_cpu_moe)
        if n_cpu_moe:
            address = ctypes.addressof(self._overrides)
            params.tensor_buft_overrides = address  # type: ignore[assignment]  # the field is a pointer
        self._model = llama.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise CloverError(f"stock llama.cpp cannot load {path}: {_reason()}")
        self._context = llama.llama_init_from_model(
            self._model, _context_params(n_ctx, threads, gpu is not None)
        )
        if not self._context:
            self.close()
            raise CloverError(f"stock llama.cpp cannot make a context for {path}: {_reason()}")
        self.vocab: int = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        self._batch = llama.llama_batch_init(BATCH, 0, 1)
        self.n_past, self._judged = 0, 1

    def __enter__(self) -> "Stock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def reset(self) -> None:
        """Forget all tokens."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        self.n_past = 0

    def prefill(self, tokens: Sequence[int]) -> float:
        """Decode a prompt in batches of 512; returns seconds."""
        return sum(self._decode(tokens[i : i + BATCH]) for i in range(0, len(tokens), BATCH))

    def step(self, token: int) -> float:
        """Decode one token; returns seconds."""
        return self._decode([token])

    def verify(self, tokens: Sequence[int]) -> float:
        """Decode up to 512 tokens with the logits of all of them; returns seconds."""
        return self._decode(tokens, every=True)

    def logits(self) -> np.ndarray:
        """Logits [rows, vocab] of the last call, float32: of all tokens after `verify`, else of the last one.

        Valid until the next call.
        """
        return np.ctypeslib.as_array(llama.llama_get_logits(self._context), (self._judged, self.vocab))

    def _decode(self, tokens: Sequence[int], *, every: bool = False) -> float:
        batch, last = self._batch, len(tokens) - 1
        batch.n_tokens, self._judged = len(tokens), len(tokens) if every else 1
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, self.n_past + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, every or i == last
        began = time.perf_counter()
        code = llama.llama_decode(self._context, batch)
        llama.llama_synchronize(self._context)
        seconds = time.perf_counter() - began
        if code != 0:
            raise CloverError(f"stock llama.cpp failed with code {code}: {_reason()}")
        self.n_past += len(tokens)
        return seconds

    def close(self) -> None:
        """Free the model."""
        if self._context:
            llama.llama_batch_free(self._batch)
            llama.llama_free(self._context)
            self._context = None
        if self._model:
            llama.llama_model_free(self._model)
            self._model = None


class _Override(ctypes.Structure):
    """struct llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("type", ctypes.c_void_p))


def _overrides(layers: int) -> "ctypes.Array[_Override]":
    """What llama.cpp makes of --n-cpu-moe: a pattern per layer, and a null that ends the list."""
    cpu = functions["ggml_backend_cpu_buffer_type"]() if layers else None
    patterns = [rf"blk\.{layer}\.ffn_(up|down|gate|gate_up)_(ch|)exps".encode() for layer in range(layers)]
    return (_Override * (layers + 1))(*(_Override(pattern, cpu) for pattern in patterns))


def within(
    path: Path, budget: int, load: Callable[[int], Stock], free: Callable[[], int], *, kv_bytes: int = 0
) -> Stock:
    """The baseline with as few layers' experts on the CPU as `budget` bytes of video memory allow.

    `load` opens it with a number of layers, `free` tells the card's free bytes. What it really takes is looked at
    after a prompt, and the number corrected, since llama.cpp's buffers are its own business.
    """
    layers, over = expert_bytes(path), set[int]()
    rest = sum(tensor.nbytes for tensor in GgufFile.open(path).tensors.values()) - sum(layers)
    room = budget - rest - kv_bytes - BESIDE
    moved = next((n for n in range(len(layers)) if sum(layers[n:]) <= room), len(layers))
    for _ in range(ATTEMPTS):
        before = free()
        stock = load(moved)
        stock.prefill(range(BATCH))
        stock.reset()
        spare = (budget - (before - free())) // max(layers)  # layers that would fit too; below 0: that do not
        target = min(max(moved - spare, 0), len(layers))
        if spare >= 0 and (target == moved or target in over):
            return stock
        if spare < 0:
            over.add(moved)
        stock.close()
        moved = target
    raise CloverError(f"stock llama.cpp was not made to fit into {budget / 2**30:.1f} GiB")


def expert_bytes(path: Path) -> list[int]:
    """Bytes of the routed experts by layer."""
    found: dict[int, int] = {}
    for name, tensor in GgufFile.open(path).tensors.items():
        if name.endswith("_exps.weight"):
            layer = int(name.split(".")[1])
            found[layer] = found.get(layer, 0) + tensor.nbytes
    return [found[layer] for layer in sorted(found)]


def _reason() -> str:
    return last_error() or "it gave no reason"


def _model_params(gpu: int | None) -> llama.llama_model_params:
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0 if gpu is None else 999
    params.split_mode = llama.LLAMA_SPLIT_MODE_NONE
    params.main_gpu = gpu or 0
    params.use_extra_bufts = False  # repacked CPU weights crash with AMX builds and cost a copy of the file
    return params


def _context_params(n_ctx: int, threads: int, gpu: bool) -> llama.llama_context_params:
    params = llama.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = params.n_ubatch = BATCH
    params.n_seq_max = 1
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = 1  # on, as in our own passes
    params.type_k = params.type_v = 1  # f16
    params.offload_kqv = params.op_offload = gpu
    params.no_perf = True
    return params
