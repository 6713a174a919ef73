"""The demo model's shape and its weights before training, under the checkpoint's names (without `model.`)."""

from typing import Any

import torch
from reference.layers import Shape
from torch import Tensor

LAYERS, CONTEXT = 8, 4096


def config(vocabulary: int, mask: int, eos: int, pad: int, *, threshold: float = 0.95) -> dict[str, Any]:
    """config.json of the checkpoint. Every matrix row is 256 values, so that the K-quants fit."""
    kinds = ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(LAYERS)]
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    return {
        "architectures": ["CloverMoeModelLM"],
        "model_type": "clover_moe",
        "hidden_size": 256,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": vocabulary,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attn_output_gate": True,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {**rope, "mrope_interleaved": True, "mrope_section": [3, 3, 2]},
        "full_attention_interval": 4,
        "layer_types": kinds,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256,
        "norm_topk_prob": True,
        "mtp_num_hidden_layers": 0,
        "block_size": 32,
        "mask_token_id": mask,
        "denoising_config": {"algorithm": "low_confidence", "threshold": threshold},
        "moe_block_coreset_enabled": True,
        "moe_block_coreset_top_p": 0.9,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "torch_dtype": "float16",
    }


def weights(shape: Shape, seed: int) -> dict[str, Tensor]:
    """Fresh weights, f32 on the CPU."""
    g = torch.Generator().manual_seed(seed)

    def normal(*size: int, std: float) -> Tensor:
        return torch.randn(*size, generator=g) * std

    out = {
        "embed_tokens.weight": normal(shape.vocab, shape.hidden, std=0.5),
        "lm_head.weight": normal(shape.vocab, shape.hidden, std=0.02),
        "norm.weight": torch.zeros(shape.hidden),
    }
    for i, attention in enumerate(shape.attention):
        layer = _attention(shape, normal) if attention else _gdn(shape, normal, g)
        layer |= _moe(shape, normal)
        layer["input_layernorm.weight"] = torch.zeros(shape.hidden)
        layer["post_attention_layernorm.weight"] = torch.zeros(shape.hidden)
        out |= {f"layers.{i}.{name}": w for name, w in layer.items()}
    return out


def _gdn(shape: Shape, normal: Any, g: torch.Generator) -> dict[str, Tensor]:
    d, heads = shape.hidden, shape.value_heads
    values = heads * shape.value_dim
    conv = normal(shape.channels, 1, 4, std=0.15)
    conv[:, 0, 3] += 0.8
    return {
        "linear_attn.in_proj_qkv.weight": normal(shape.channels, d, std=d**-0.5),
        "linear_attn.in_proj_z.weight": normal(values, d, std=d**-0.5),
        "linear_attn.in_proj_a.weight": normal(heads, d, std=0.3 * d**-0.5),
        "linear_attn.in_proj_b.weight": normal(heads, d, std=d**-0.5),
        "linear_attn.conv1d.weight": conv,
        "linear_attn.conv_right_weight": torch.zeros(shape.channels, 3),
        "linear_attn.A_log": torch.log(torch.linspace(0.1, 4, heads)),
        "linear_attn.dt_bias": torch.linspace(-4, -1, heads),
        "linear_attn.bd_softmax_logit_scale": torch.linspace(4, 10, heads),
        "linear_attn.bd_softmax_history_bias": torch.linspace(2.5, 4, heads)[
            torch.randperm(heads, generator=g)
        ],
        "linear_attn.bd_softmax_history_c": torch.zeros(heads),
        "linear_attn.norm.weight": torch.ones(shape.value_dim),
        "linear_attn.out_proj.weight": normal(d, values, std=0.02),
    }


def _attention(shape: Shape, normal: Any) -> dict[str, Tensor]:
    d, query, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "self_attn.q_proj.weight": normal(2 * query, d, std=d**-0.5),
        "self_attn.k_proj.weight": normal(kv, d, std=d**-0.5),
        "self_attn.v_proj.weight": normal(kv, d, std=d**-0.5),
        "self_attn.o_proj.weight": normal(d, query, std=0.02),
        "self_attn.q_norm.weight": torch.zeros(shape.head_dim),
        "self_attn.k_norm.weight": torch.zeros(shape.head_dim),
    }


def _moe(shape: Shape, normal: Any) -> dict[str, Tensor]:
    d, e, width, shared = shape.hidden, shape.experts, shape.expert_width, shape.shared_width
    return {
        "mlp.gate.weight": normal(e, d, std=0.5 * d**-0.5),
        "mlp.experts.gate_up_proj": normal(e, 2 * width, d, std=d**-0.5),
        "mlp.experts.down_proj": normal(e, d, width, std=0.02),
        "mlp.shared_expert.gate_proj.weight": normal(shared, d, std=d**-0.5),
        "mlp.shared_expert.up_proj.weight": normal(shared, d, std=d**-0.5),
        "mlp.shared_expert.down_proj.weight": normal(d, shared, std=0.02),
        "mlp.shared_expert_gate.weight": normal(1, d, std=0.3 * d**-0.5),
    }
