"""Loads the ggml libraries bundled in llama-cpp-python and binds the functions we call, from one table.

Nothing is imported from llama_cpp itself: its package prints and loads more than is needed. On import the
version and the struct layout that ctypes assumes are proved against the library; a mismatch is a sentence,
never a wrong read.
"""

import ctypes as C
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clover_local.errors import CloverError

BINDING = "0.3.36"  # the llama-cpp-python this table and the structs below were written for
GGML_VERSION = "0.25.3"
MAX_DIMS, MAX_SRC, MAX_OP_PARAMS, MAX_NAME = 4, 10, 64, 64


class Tensor(C.Structure):
    """struct ggml_tensor."""

    _fields_ = (
        ("type", C.c_int),
        ("buffer", C.c_void_p),
        ("ne", C.c_int64 * MAX_DIMS),
        ("nb", C.c_size_t * MAX_DIMS),
        ("op", C.c_int),
        ("op_params", C.c_int32 * (MAX_OP_PARAMS // 4)),
        ("flags", C.c_int32),
        ("src", C.c_void_p * MAX_SRC),
        ("view_src", C.c_void_p),
        ("view_offs", C.c_size_t),
        ("data", C.c_void_p),
        ("name", C.c_char * MAX_NAME),
        ("extra", C.c_void_p),
        ("padding", C.c_char * 8),
    )


class CGraph(C.Structure):
    """struct ggml_cgraph (internal to ggml; `uid` spares a comparison of all nodes at every CUDA launch)."""

    _fields_ = (
        ("size", C.c_int),
        ("n_nodes", C.c_int),
        ("n_leafs", C.c_int),
        ("nodes", C.POINTER(C.POINTER(Tensor))),
        ("grads", C.c_void_p),
        ("grad_accs", C.c_void_p),
        ("leafs", C.c_void_p),
        ("use_counts", C.c_void_p),
        ("hash_size", C.c_size_t),
        ("hash_used", C.c_void_p),
        ("hash_keys", C.c_void_p),
        ("order", C.c_int),
        ("uid", C.c_uint64),
    )


class TypeTraits(C.Structure):
    """struct ggml_type_traits."""

    _fields_ = (
        ("type_name", C.c_char_p),
        ("blck_size", C.c_int64),
        ("blck_size_interleave", C.c_int64),
        ("type_size", C.c_size_t),
        ("is_quantized", C.c_bool),
        ("to_float", C.c_void_p),
        ("from_float_ref", C.c_void_p),
    )


class InitParams(C.Structure):
    """struct ggml_init_params."""

    _fields_ = (("mem_size", C.c_size_t), ("mem_buffer", C.c_void_p), ("no_alloc", C.c_bool))


LOG_CALLBACK = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)
Node = Any  # POINTER(Tensor): ctypes' own pointer type has no useful static form
_P, _T, _G = C.c_void_p, C.POINTER(Tensor), C.POINTER(CGraph)
_I, _L, _F, _B, _S, _STR = C.c_int, C.c_int64, C.c_float, C.c_bool, C.c_size_t, C.c_char_p

_ONE = (_T, (_P, _T))
_TWO = (_T, (_P, _T, _T))
_THREE = (_T, (_P, _T, _T, _T))
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    # library and types
    "ggml_version": (_STR, ()),
    "ggml_tensor_overhead": (_S, ()),
    "ggml_graph_overhead_custom": (_S, (_S, _B)),
    "ggml_log_set": (None, (LOG_CALLBACK, _P)),
    "ggml_blck_size": (_L, (_I,)),
    "ggml_type_size": (_S, (_I,)),
    "ggml_type_name": (_STR, (_I,)),
    "ggml_row_size": (_S, (_I, _L)),
    "ggml_quantize_chunk": (_S, (_I, _P, _P, _L, _L, _L, _P)),
    "ggml_quantize_requires_imatrix": (_B, (_I,)),
    "ggml_quantize_init": (None, (_I,)),
    "ggml_get_type_traits": (C.POINTER(TypeTraits), (_I,)),
    # contexts, tensors, graphs
    "ggml_init": (_P, (InitParams,)),
    "ggml_free": (None, (_P,)),
    "ggml_new_tensor_4d": (_T, (_P, _I, _L, _L, _L, _L)),
    "ggml_set_name": (_T, (_T, _STR)),
    "ggml_set_input": (None, (_T,)),
    "ggml_set_output": (None, (_T,)),
    "ggml_nbytes": (_S, (_T,)),
    "ggml_op_name": (_STR, (_I,)),
    "ggml_new_graph_custom": (_G, (_P, _S, _B)),
    "ggml_build_forward_expand": (None, (_G, _T)),
    # operations
    **{
        f"ggml_{name}": _ONE
        for name in "silu sigmoid softplus exp sqr step relu neg log sum_rows cumsum argmax soft_max cont "
        "transpose swiglu".split()
    },
    **{
        f"ggml_{name}": _TWO
        for name in "add sub mul div repeat get_rows mul_mat swiglu_split ssm_conv cpy".split()
    },
    "ggml_set_rows": _THREE,
    "ggml_mul_mat_id": _THREE,
    "ggml_rms_norm": (_T, (_P, _T, _F)),
    "ggml_l2_norm": (_T, (_P, _T, _F)),
    "ggml_scale": (_T, (_P, _T, _F)),
    "ggml_scale_bias": (_T, (_P, _T, _F, _F)),
    "ggml_clamp": (_T, (_P, _T, _F, _F)),
    "ggml_fill": (_T, (_P, _T, _F)),
    "ggml_concat": (_T, (_P, _T, _T, _I)),
    "ggml_pad_ext": (_T, (_P, _T, *[_I] * 8)),
    "ggml_view_1d": (_T, (_P, _T, _L, _S)),
    "ggml_view_2d": (_T, (_P, _T, _L, _L, _S, _S)),
    "ggml_view_3d": (_T, (_P, _T, _L, _L, _L, _S, _S, _S)),
    "ggml_view_4d": (_T, (_P, _T, _L, _L, _L, _L, _S, _S, _S, _S)),
    "ggml_reshape_1d": (_T, (_P, _T, _L)),
    "ggml_reshape_2d": (_T, (_P, _T, _L, _L)),
    "ggml_reshape_3d": (_T, (_P, _T, _L, _L, _L)),
    "ggml_reshape_4d": (_T, (_P, _T, _L, _L, _L, _L)),
    "ggml_cont_2d": (_T, (_P, _T, _L, _L)),
    "ggml_repeat_4d": (_T, (_P, _T, _L, _L, _L, _L)),
    "ggml_permute": (_T, (_P, _T, _I, _I, _I, _I)),
    "ggml_argsort": (_T, (_P, _T, _I)),
    "ggml_argsort_top_k": (_T, (_P, _T, _I)),
    "ggml_soft_max_ext": (_T, (_P, _T, _T, _F, _F)),
    "ggml_soft_max_add_sinks": (None, (_T, _T)),
    "ggml_flash_attn_ext": (_T, (_P, _T, _T, _T, _T, _F, _F, _F)),
    "ggml_prec_set_acc": (_B, (_T, _I)),
    "ggml_rope_ext": (_T, (_P, _T, _T, _T, _I, _I, _I, *[_F] * 6)),
    "ggml_gated_delta_net": (_T, (_P, _T, _T, _T, _T, _T, _T, _L)),
    # devices, backends, buffers
    "ggml_backend_load_all": (None, ()),
    "ggml_backend_load_all_from_path": (None, (_STR,)),
    "ggml_backend_dev_count": (_S, ()),
    "ggml_backend_dev_get": (_P, (_S,)),
    "ggml_backend_dev_name": (_STR, (_P,)),
    "ggml_backend_dev_description": (_STR, (_P,)),
    "ggml_backend_dev_type": (_I, (_P,)),
    "ggml_backend_dev_memory": (None, (_P, C.POINTER(_S), C.POINTER(_S))),
    "ggml_backend_dev_init": (_P, (_P, _STR)),
    "ggml_backend_dev_host_buffer_type": (_P, (_P,)),
    "ggml_backend_cpu_buffer_type": (_P, ()),
    "ggml_backend_free": (None, (_P,)),
    "ggml_backend_name": (_STR, (_P,)),
    "ggml_backend_synchronize": (None, (_P,)),
    "ggml_backend_supports_op": (_B, (_P, _T)),
    "ggml_backend_graph_compute": (_I, (_P, _G)),
    "ggml_backend_graph_compute_async": (_I, (_P, _G)),
    "ggml_backend_get_default_buffer_type": (_P, (_P,)),
    "ggml_backend_buft_alloc_buffer": (_P, (_P, _S)),
    "ggml_backend_buft_get_alignment": (_S, (_P,)),
    "ggml_backend_buft_get_alloc_size": (_S, (_P, _T)),
    "ggml_backend_alloc_ctx_tensors": (_P, (_P, _P)),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_P, (_P, _P)),
    "ggml_backend_buffer_get_base": (_P, (_P,)),
    "ggml_backend_buffer_get_size": (_S, (_P,)),
    "ggml_backend_buffer_get_type": (_P, (_P,)),
    "ggml_backend_buffer_set_usage": (None, (_P, _I)),
    "ggml_backend_buffer_clear": (None, (_P, C.c_uint8)),
    "ggml_backend_buffer_free": (None, (_P,)),
    "ggml_backend_cpu_buffer_from_ptr": (_P, (_P, _S)),
    "ggml_backend_cpu_set_n_threads": (None, (_P, _I)),
    "ggml_backend_tensor_alloc": (_I, (_P, _T, _P)),
    "ggml_backend_tensor_set": (None, (_T, _P, _S, _S)),
    "ggml_backend_tensor_memset": (None, (_T, C.c_uint8, _S, _S)),
    "ggml_backend_tensor_get": (None, (_T, _P, _S, _S)),
    "ggml_backend_tensor_set_async": (None, (_P, _T, _P, _S, _S)),
    "ggml_backend_tensor_get_async": (None, (_P, _T, _P, _S, _S)),
    # allocation
    "ggml_gallocr_new": (_P, (_P,)),
    "ggml_gallocr_free": (None, (_P,)),
    "ggml_gallocr_alloc_graph": (_B, (_P, _G)),
    "ggml_gallocr_get_buffer_size": (_S, (_P, _I)),
    "ggml_backend_sched_new": (_P, (C.POINTER(_P), C.POINTER(_P), _I, _S, _B, _B)),
    "ggml_backend_sched_free": (None, (_P,)),
    "ggml_backend_sched_alloc_graph": (_B, (_P, _G)),
    "ggml_backend_sched_graph_compute": (_I, (_P, _G)),
    "ggml_backend_sched_graph_compute_async": (_I, (_P, _G)),
    "ggml_backend_sched_synchronize": (None, (_P,)),
    "ggml_backend_sched_get_n_splits": (_I, (_P,)),
    "ggml_backend_sched_get_buffer_size": (_S, (_P, _P)),
}


def library_folder() -> Path:
    """The folder of llama-cpp-python's shared libraries, found without importing the package."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise CloverError(
            "llama-cpp-python is not installed", f"run: pip install llama-cpp-python=={BINDING}"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "lib"


def _load(folder: Path) -> list[C.CDLL]:
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    prefix = "" if sys.platform == "win32" else "lib"
    libraries = []
    for name in ("ggml-base", "ggml-cpu", "ggml"):
        path = folder / f"{prefix}{name}{suffix}"
        try:
            libraries.append(C.CDLL(str(path), mode=C.RTLD_GLOBAL))
        except OSError as error:
            raise CloverError(
                f"the ggml library {path} cannot be loaded: {error}",
                f"reinstall it: pip install --force-reinstall llama-cpp-python=={BINDING}",
            ) from error
    return libraries


def _bind(libraries: list[C.CDLL]) -> dict[str, Callable[..., Any]]:
    bound: dict[str, Callable[..., Any]] = {}
    missing = []
    for name, (result, arguments) in SIGNATURES.items():
        function = next((getattr(lib, name) for lib in libraries if hasattr(lib, name)), None)
        if function is None:
            missing.append(name)
            continue
        function.restype, function.argtypes = result, list(arguments)
        bound[name] = function
    if missing:
        raise _mismatch(f"it lacks {', '.join(missing)}")
    return bound


def _mismatch(what: str) -> CloverError:
    return CloverError(
        f"the installed llama-cpp-python does not match this program: {what}",
        f"run: pip install llama-cpp-python=={BINDING}",
    )


def _prove(functions: dict[str, Callable[..., Any]]) -> None:
    """Check version and layouts: sizes as the library counts them, and one tensor read back by ctypes."""
    version = functions["ggml_version"]().decode()
    if version != GGML_VERSION:
        raise _mismatch(f"its ggml is {version}, wanted {GGML_VERSION}")
    overhead = functions["ggml_tensor_overhead"]()
    if overhead != C.sizeof(Tensor) + 32:  # ggml's object header is 32 bytes
        raise _mismatch(f"a tensor takes {overhead - 32} bytes there and {C.sizeof(Tensor)} here")
    context = functions["ggml_init"](InitParams(4096 + overhead * 4, None, True))
    try:
        tensor = functions["ggml_new_tensor_4d"](context, 0, 2, 3, 5, 7)
        functions["ggml_set_name"](tensor, b"layout")
        fields = tensor.contents
        if (list(fields.ne), list(fields.nb), fields.name) != ([2, 3, 5, 7], [4, 8, 24, 120], b"layout"):
            raise _mismatch("a tensor's fields lie elsewhere")
    finally:
        functions["ggml_free"](context)


_messages: list[str] = []


@LOG_CALLBACK
def on_log(level: int, text: bytes | None, _: object) -> None:
    """What ggml and llama.cpp call with every line of their log."""
    line = (text or b"").decode(errors="replace")
    if level == 4:  # an error: kept, so that our own sentence can quote it
        _messages.append(line.strip())
        del _messages[:-20]
    if DEBUG:
        sys.stderr.write(line)


DEBUG = os.environ.get("CLOVER_DEBUG", "") not in ("", "0")


def set_debug(on: bool) -> None:
    """Show or hide ggml's and llama.cpp's own log on stderr."""
    global DEBUG
    DEBUG = on


def last_error() -> str:
    """The last error line ggml or llama.cpp logged, or an empty string."""
    return _messages[-1] if _messages else ""


FOLDER = library_folder()
_LIBRARIES = _load(FOLDER)
functions = _bind(_LIBRARIES)
_prove(functions)
functions["ggml_log_set"](on_log, None)  # module-level callback: ggml keeps the pointer
