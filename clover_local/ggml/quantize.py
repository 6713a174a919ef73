"""Values to quantized rows and back, by ggml's own codecs; ctypes frees the GIL, so threads help."""

import ctypes as C
from functools import cache

import numpy as np

from clover_local.errors import CloverError
from clover_local.ggml.lib import functions
from clover_local.ggml.types import tensor_type

_ToFloat = C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_int64)


def needs_importance(type_name: str) -> bool:
    """Whether the type can only be made with an importance matrix."""
    return bool(functions["ggml_quantize_requires_imatrix"](tensor_type(type_name).id))


def quantize(type_name: str, values: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """Quantize float32 values [rows, n] to uint8 [rows, row bytes].

    `importance` [n] weighs the columns. Raises CloverError when the type needs one and none is given, or
    when n is not a multiple of the type's block.
    """
    kind = tensor_type(type_name)
    values = np.ascontiguousarray(values, np.float32)
    rows, n = values.shape
    out = np.empty((rows, kind.row_bytes(n)), np.uint8)
    if importance is None and needs_importance(type_name):
        raise CloverError(f"{kind.name} needs an importance matrix", "give one, or choose a K type")
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
    written = functions["ggml_quantize_chunk"](
        kind.id,
        values.ctypes.data,
        out.ctypes.data,
        0,
        rows,
        n,
        None if weights is None else weights.ctypes.data,
    )
    if written != out.nbytes:
        raise CloverError(f"ggml wrote {written} bytes of {kind.name} where {out.nbytes} were expected")
    return out


@cache
def _to_float(type_id: int) -> object:
    get = functions["ggml_get_type_traits"]
    address = get(type_id).contents.to_float
    if not address:
        raise CloverError(f"ggml cannot turn type {type_id} back into float32")
    return _ToFloat(address)


def dequantize(type_name: str, data: np.ndarray, n: int) -> np.ndarray:
    """Turn quantized bytes into float32 [rows, n]; n is the row length."""
    kind = tensor_type(type_name)
    data = np.ascontiguousarray(data).view(np.uint8).reshape(-1, kind.row_bytes(n))
    if kind.name == "f32":
        return data.view(np.float32).reshape(-1, n).copy()
    out = np.empty((data.shape[0], n), np.float32)
    _to_float(kind.id)(data.ctypes.data, out.ctypes.data, out.size)  # type: ignore[operator]
    return out
