"""Names for the kinds of tensors of a model file, as people and reports speak of them."""

from fnmatch import fnmatchcase

OTHER = "norms and vectors"
# First match wins. Patterns are GGUF names.
CLASSES: tuple[tuple[str, str], ...] = (
    ("token_embd.weight", "token embedding"),
    ("output.weight", "output head"),
    ("blk.*.ffn_*_exps.weight", "routed experts"),
    ("blk.*.ffn_gate_inp.weight", "router"),
    ("blk.*.ffn_gate_inp_shexp.weight", OTHER),
    ("blk.*.ffn_*_shexp.weight", "shared experts"),
    ("blk.*.attn_q.weight", "attention"),
    ("blk.*.attn_k.weight", "attention"),
    ("blk.*.attn_v.weight", "attention"),
    ("blk.*.attn_output.weight", "attention"),
    ("blk.*.attn_qkv.weight", "GDN projections"),
    ("blk.*.attn_gate.weight", "GDN projections"),
    ("blk.*.ssm_out.weight", "GDN projections"),
    ("blk.*.ssm_alpha.weight", "GDN gates"),
    ("blk.*.ssm_beta.weight", "GDN gates"),
)


def tensor_class(name: str) -> str:
    """The class of a tensor by its GGUF name."""
    return next((kind for pattern, kind in CLASSES if fnmatchcase(name, pattern)), OTHER)
