"""Tensor types by name: ids, block sizes and row sizes, as ggml defines them."""

from dataclasses import dataclass
from functools import cache

from clover_local.errors import CloverError
from clover_local.ggml.lib import functions

IDS: dict[str, int] = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "q2_k": 10,
    "q3_k": 11,
    "q4_k": 12,
    "q5_k": 13,
    "q6_k": 14,
    "iq2_xxs": 16,
    "iq2_xs": 17,
    "iq3_xxs": 18,
    "iq1_s": 19,
    "iq4_nl": 20,
    "iq3_s": 21,
    "iq2_s": 22,
    "iq4_xs": 23,
    "i8": 24,
    "i16": 25,
    "i32": 26,
    "i64": 27,
    "f64": 28,
    "iq1_m": 29,
    "bf16": 30,
    "tq1_0": 34,
    "tq2_0": 35,
    "mxfp4": 39,
}
NAMES: dict[int, str] = {number: name for name, number in IDS.items()}


@dataclass(frozen=True)
class TensorType:
    """A tensor type: `block` values are stored in `size` bytes."""

    name: str
    id: int
    block: int
    size: int

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of n values; n must be a multiple of the block."""
        if n % self.block:
            raise CloverError(f"a row of {n} values does not fit {self.name}, whose block is {self.block}")
        return n // self.block * self.size


@cache
def tensor_type(name_or_id: str | int) -> TensorType:
    """Look a type up by its name (any case) or ggml id; raises CloverError for one that does not exist."""
    if isinstance(name_or_id, str):
        number = IDS.get(name_or_id.lower())
    else:
        number = name_or_id if name_or_id in NAMES else None
    if number is None:
        raise CloverError(f"unknown tensor type {name_or_id!r}", f"known types: {', '.join(IDS)}")
    block = functions["ggml_blck_size"](number)
    return TensorType(NAMES[number], number, block, functions["ggml_type_size"](number))
