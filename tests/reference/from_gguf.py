"""The torch model over the weights of a GGUF, dequantized: what a quantized file says, computed in float32.

The converter's transforms are undone by their own formulas here, not by its code, so that both are checked.
"""

from pathlib import Path

import numpy as np
import torch

from clover_local.ggml.gguf import GgufFile
from clover_local.ggml.quantize import dequantize
from clover_local.model.spec import Spec

from . import layers as L
from . import model as M


def load(path: Path, shape: L.Shape) -> M.Model:
    """Weights by checkpoint name, in checkpoint order, from a converted file of the same shape."""
    file = GgufFile.open(path)
    spec = Spec.from_gguf(file)
    weights = {
        "embed_tokens.weight": _values(file, "token_embd.weight"),
        "norm.weight": _values(file, "output_norm.weight") - 1,
        "lm_head.weight": _values(file, "output.weight"),
    }
    for layer in range(spec.layers):
        own = _attention(file, layer) if spec.is_attention(layer) else _gdn(file, spec, layer)
        weights |= {f"layers.{layer}.{name}": value for name, value in {**own, **_moe(file, layer)}.items()}
    return M.Model(shape, {name: torch.tensor(value) for name, value in weights.items()})


def _values(file: GgufFile, name: str) -> np.ndarray:
    info = file.tensors[name]
    flat = dequantize(info.type.name, file.array(name), info.shape[0])
    return flat.reshape(tuple(reversed(info.shape)))


def _attention(file: GgufFile, layer: int) -> dict[str, np.ndarray]:
    b = f"blk.{layer}."
    named = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
    out = {f"self_attn.{ours}.weight": _values(file, f"{b}{theirs}.weight") for ours, theirs in named.items()}
    for norm in ("q_norm", "k_norm"):
        out[f"self_attn.{norm}.weight"] = _values(file, f"{b}attn_{norm}.weight") - 1
    return out


def _gdn(file: GgufFile, spec: Spec, layer: int) -> dict[str, np.ndarray]:
    ratio = spec.value_heads // spec.key_heads
    # tiled position j * key_heads + k holds grouped head k * ratio + j
    grouped = np.array([j * spec.key_heads + k for k in range(spec.key_heads) for j in range(ratio)])
    values = (grouped[:, None] * spec.gdn_head_dim + np.arange(spec.gdn_head_dim)).reshape(-1)
    keys = 2 * spec.key_size
    channels = np.concatenate([np.arange(keys), keys + values])
    b, index, preview = f"blk.{layer}.", spec.gdn_layers.index(layer), spec.preview
    assert preview is not None
    p = "linear_attn."
    return {
        p + "in_proj_qkv.weight": _values(file, b + "attn_qkv.weight")[channels],
        p + "in_proj_z.weight": _values(file, b + "attn_gate.weight")[values],
        p + "in_proj_a.weight": _values(file, b + "ssm_alpha.weight")[grouped],
        p + "in_proj_b.weight": _values(file, b + "ssm_beta.weight")[grouped],
        p + "conv1d.weight": _values(file, b + "ssm_conv1d.weight")[channels][:, None],
        p + "A_log": np.log(-_values(file, b + "ssm_a").reshape(-1)[grouped]),
        p + "dt_bias": _values(file, b + "ssm_dt.bias").reshape(-1)[grouped],
        p + "norm.weight": _values(file, b + "ssm_norm.weight"),
        p + "out_proj.weight": _values(file, b + "ssm_out.weight")[:, values],
        p + "conv_right_weight": preview.conv_right[index][channels],
        p + "bd_softmax_logit_scale": preview.logit_scale[index][grouped],
        p + "bd_softmax_history_bias": preview.history_bias[index][grouped],
        p + "bd_softmax_history_c": preview.history_c[index][grouped],
    }


def _moe(file: GgufFile, layer: int) -> dict[str, np.ndarray]:
    b = f"blk.{layer}."
    halves = [_values(file, f"{b}ffn_{half}_exps.weight") for half in ("gate", "up")]
    out = {
        "input_layernorm.weight": _values(file, b + "attn_norm.weight") - 1,
        "post_attention_layernorm.weight": _values(file, b + "post_attention_norm.weight") - 1,
        "mlp.gate.weight": _values(file, b + "ffn_gate_inp.weight"),
        "mlp.experts.gate_up_proj": np.concatenate(halves, axis=1),
        "mlp.experts.down_proj": _values(file, b + "ffn_down_exps.weight"),
        "mlp.shared_expert_gate.weight": _values(file, b + "ffn_gate_inp_shexp.weight").reshape(1, -1),
    }
    for part in ("gate", "up", "down"):
        out[f"mlp.shared_expert.{part}_proj.weight"] = _values(file, f"{b}ffn_{part}_shexp.weight")
    return out
