"""The structures kernels take, as ctypes; each mirrors the one of the same name in kernels/*.cu and *.cuh.

The compiler is told every size, so a structure that grew on one side only does not compile.
"""

import ctypes as C

MAX_ROWS = 32
MAX_EXPERTS = 512
MAX_PICKS = 16
MAX_SLOTS = 8 * MAX_EXPERTS + MAX_ROWS
SEGMENTS = 5

Address = C.c_void_p
Int = C.c_int
Float = C.c_float


class Pass(C.Structure):
    """What changes from run to run: rows, committed tokens, rows to replay, limits of a draft, and the tokens."""

    _fields_ = (
        *((name, Int) for name in "n past replay counted picks budget resident".split()),
        ("tokens", Int * MAX_ROWS),
    )


class Acts(C.Structure):
    """Activations: 8-bit blocks of 32, (scale, scale * sum) per block or scales of several and sums, and float32."""

    _fields_ = tuple((name, Address) for name in "q s scale sum f".split())


class Segment(C.Structure):
    """One matrix of a dense launch."""

    _fields_ = (("data", Address), ("type", Int), ("rows", Int), ("tile", Int), ("out", Int))


class DenseArgs(C.Structure):
    """Matrices behind one input."""

    _fields_ = (
        ("segments", Segment * SEGMENTS),
        ("x", Acts),
        ("out", Address),
        ("run", Address),
        *((name, Int) for name in "count ld tiles add".split()),
    )


class EmbedArgs(C.Structure):
    """Token embedding."""

    _fields_ = (("table", Address), ("x", Address), ("run", Address), ("type", Int), ("hidden", Int))


class NormArgs(C.Structure):
    """The experts' shares added to the rows, RMS norm and quantization."""

    _fields_ = (
        ("x", Address),
        ("weight", Address),
        ("out", Acts),
        *((name, Address) for name in "run add slots picks".split()),
        ("stride", Int),
        ("eps", Float),
    )


class GdnLayer(C.Structure):
    """Inputs, state and vectors of one Gated DeltaNet layer."""

    _fields_ = tuple(
        (name, Address)
        for name in ("y ring state taps decay dt_bias norm right logit_scale history_bias history_c".split())
    )


class GdnArgs(C.Structure):
    """One layer's recurrence or preview."""

    _fields_ = (
        ("layer", GdnLayer),
        ("out", Acts),
        *((name, Address) for name in "mixed arrived run".split()),
        ("key_heads", Int),
        ("value_heads", Int),
        ("ld", Int),
        ("keep_state", Int),
        ("eps", Float),
    )


class ReplayArgs(C.Structure):
    """The commit of all layers."""

    _fields_ = (("layers", Address), ("run", Address), ("key_heads", Int), ("value_heads", Int), ("ld", Int))


class PrepareArgs(C.Structure):
    """Norms, rope and the KV write."""

    _fields_ = (
        *((name, Address) for name in "y q_norm k_norm q keys values run".split()),
        *((name, Int) for name in "heads kv_heads ld rotated".split()),
        ("eps", Float),
        ("log2_theta", Float),
    )


class AttentionArgs(C.Structure):
    """Attention in splits and their combination."""

    _fields_ = (
        *((name, Address) for name in "q keys values partial stats y".split()),
        ("out", Acts),
        ("run", Address),
        *((name, Int) for name in "heads kv_heads ld splits width causal".split()),
    )


class Route(C.Structure):
    """Where routing leaves its outcome."""

    _fields_ = (
        ("count", Int),
        ("picks", Int),
        *((name, Int * (MAX_EXPERTS + 1)) for name in "expert first users".split()),
        ("row", Int * MAX_SLOTS),
        ("weight", Float * MAX_SLOTS),
        ("slot", Int * (MAX_PICKS + 1) * MAX_ROWS),
        *((name, Address * (MAX_EXPERTS + 1)) for name in "gate up down".split()),
    )


class RouteArgs(C.Structure):
    """Routing of all rows; the experts' matrices are reached through tables of pointers."""

    _fields_ = (
        *((name, Address) for name in "logits route run gate up down resident usage".split()),
        *((name, Int) for name in "picks ld preview".split()),
        ("top_p", Float),
    )


class ExpertArgs(C.Structure):
    """The experts' matrices of one layer, as routing found them."""

    _fields_ = (
        ("x", Acts),
        ("act", Acts),
        *((name, Address) for name in "shared out route run".split()),
        ("gate_type", Int),
        ("up_type", Int),
        ("down_type", Int * 2),
        ("ld", Int),
    )


class StageArgs(C.Structure):
    """All experts of one layer and part, copied side by side."""

    _fields_ = (("table", Address), ("out", Address), ("bytes", C.c_uint64), ("stride", C.c_uint64))


class Processing(C.Structure):
    """Constants of the response processing of one pass."""

    _fields_ = (
        *((name, Float) for name in "presence frequency repetition".split()),
        *((name, Int) for name in "mask_id think_id seen stops".split()),
        ("length_bias", Float * MAX_ROWS),
        ("think_bias", Float * MAX_ROWS),
    )


class ProcessArgs(C.Structure):
    """The response processing of all rows."""

    _fields_ = (
        *((name, Address) for name in "logits processing seen counts stop_ids run".split()),
        ("vocab", Int),
    )


class Choice(C.Structure):
    """A stretch of logits summed up."""

    _fields_ = (("top", Float), ("id", Int), ("sum", Float), ("dot", Float))


class RowResult(C.Structure):
    """What the host reads per row."""

    _fields_ = (("id", Int), ("p", Float), ("entropy", Float), ("next_p", Float))


class ChooseArgs(C.Structure):
    """The choice of every row."""

    _fields_ = (
        *((name, Address) for name in "logits parts out run".split()),
        ("vocab", Int),
        ("splits", Int),
    )


KERNEL_ARGUMENTS: tuple[type[C.Structure], ...] = (
    DenseArgs, EmbedArgs, NormArgs, GdnArgs, ReplayArgs, PrepareArgs, AttentionArgs, RouteArgs, ExpertArgs,
    ProcessArgs, ChooseArgs, StageArgs,
)  # fmt: skip


def sizes() -> dict[str, int]:
    """Definitions SIZE_<name> for the compiler."""
    return {f"SIZE_{kind.__name__}": C.sizeof(kind) for kind in KERNEL_ARGUMENTS}
