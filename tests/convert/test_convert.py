"""Whole conversions: values, types, bytes, and what stock llama.cpp makes of the file."""

import json
from pathlib import Path

import numpy as np
import pytest

from clover_local.bench.stock import Stock
from clover_local.convert import convert
from clover_local.convert import plan as planning
from clover_local.convert.plan import Plan
from clover_local.ggml.gguf import GgufFile
from clover_local.ggml.quantize import dequantize, quantize
from clover_local.model.spec import Spec
from tests.convert import made


def tensor(file: GgufFile, name: str) -> np.ndarray:
    """A tensor as float32 in numpy's order."""
    info = file.tensors[name]
    return dequantize(info.type.name, file.array(name), info.shape[0]).reshape(info.shape[::-1])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.checkpoint(tmp_path_factory.mktemp("small") / "model")


def done(*args: object, **kwargs: object) -> Path:
    result = convert(*args, threads=2, **kwargs)  # type: ignore[arg-type]
    assert isinstance(result, Path)
    return result


def test_every_value_against_the_formulas(small: Path, tmp_path: Path) -> None:
    """Written out by hand from docs/model.md: 2 key heads, 3 value heads each, head size 16."""
    config = made.write_config(small)
    w = made.values_for(config)
    file = GgufFile.open(done(small, tmp_path / "out.gguf", recipe="f32"))
    heads = [0, 3, 1, 4, 2, 5]  # tiled: value head 0 of both key heads, then 1, then 2
    values = [h * 16 + d for h in heads for d in range(16)]
    channels = [*range(64), *(64 + v for v in values)]
    g, a, m = "model.layers.1.linear_attn.", "model.layers.3.self_attn.", "model.layers.3.mlp."
    preview = {
        name: w[g + "bd_softmax_" + name][heads] for name in ("logit_scale", "history_bias", "history_c")
    }
    expected = {
        "token_embd.weight": w["model.embed_tokens.weight"],
        "output_norm.weight": w["model.norm.weight"] + 1,
        "output.weight": w["lm_head.weight"],
        "blk.1.attn_norm.weight": w["model.layers.1.input_layernorm.weight"] + 1,
        "blk.1.post_attention_norm.weight": w["model.layers.1.post_attention_layernorm.weight"] + 1,
        "blk.1.attn_qkv.weight": w[g + "in_proj_qkv.weight"][channels],
        "blk.1.attn_gate.weight": w[g + "in_proj_z.weight"][values],
        "blk.1.ssm_alpha.weight": w[g + "in_proj_a.weight"][heads],
        "blk.1.ssm_beta.weight": w[g + "in_proj_b.weight"][heads],
        "blk.1.ssm_conv1d.weight": w[g + "conv1d.weight"][channels, 0],
        "blk.1.ssm_a": -np.exp(w[g + "A_log"][heads]),
        "blk.1.ssm_dt.bias": w[g + "dt_bias"][heads],
        "blk.1.ssm_norm.weight": w[g + "norm.weight"],
        "blk.1.ssm_out.weight": w[g + "out_proj.weight"][:, values],
        "blk.3.attn_q.weight": w[a + "q_proj.weight"],
        "blk.3.attn_q_norm.weight": w[a + "q_norm.weight"] + 1,
        "blk.3.attn_k_norm.weight": w[a + "k_norm.weight"] + 1,
        "blk.3.ffn_gate_inp.weight": w[m + "gate.weight"],
        "blk.3.ffn_gate_inp_shexp.weight": w[m + "shared_expert_gate.weight"][0],
        "blk.3.ffn_gate_exps.weight": w[m + "experts.gate_up_proj"][:, :32],
        "blk.3.ffn_up_exps.weight": w[m + "experts.gate_up_proj"][:, 32:],
        "blk.3.ffn_down_exps.weight": w[m + "experts.down_proj"],
    }
    for name, want in expected.items():
        assert (tensor(file, name) == want).all(), name
    spec = Spec.from_gguf(file)
    assert spec.preview is not None and spec.can_draft
    assert (spec.preview.conv_right[1] == w[g + "conv_right_weight"][channels]).all()
    for name, want in preview.items():
        assert (getattr(spec.preview, name)[1] == want).all(), name


def test_numbers_and_settings_reach_the_spec(tiny_int4: Path) -> None:
    file = GgufFile.open(tiny_int4)
    spec = Spec.from_gguf(file)
    assert (spec.layers, spec.hidden, spec.vocab, spec.experts, spec.experts_used) == (4, 256, 1536, 8, 3)
    assert (spec.mask_id, spec.pad_id, spec.eos_ids) == (1505, 1500, (1502, 1500))
    assert (spec.block_size, round(spec.threshold, 6), spec.coreset_top_p) == (32, 0.9, pytest.approx(0.8))
    assert spec.processing.length.strength == 2.0 and spec.processing.length.window == 32
    assert spec.processing.think_end_id == 1504 and spec.processing.presence == pytest.approx(0.1)
    assert file.keys["general.quantized_by"].startswith("clover-local ")
    assert file.keys["general.file_type"] == 15
    assert "add_generation_prompt" in file.keys["tokenizer.chat_template"]


def test_stock_llama_writes_the_recorded_text(trained_f32: Path, shared: Path) -> None:
    """Greedy ids of another engine on the same checkpoint, by stock llama.cpp on our file."""
    recorded = json.loads((shared / "oracle/clover-10m.results.json").read_text())
    for case in recorded["cases"]:
        ids: list[int] = []
        with Stock(trained_f32, n_ctx=1024, threads=2, gpu=None) as stock:
            stock.prefill(case["prompt_ids"])
            for _ in case["plain_ids"]:
                logits = stock.logits()[-1].copy()
                logits[1505] = -np.inf  # the release never writes the mask token
                ids.append(int(logits.argmax()))
                stock.step(ids[-1])
        assert ids == case["plain_ids"]


@pytest.mark.parametrize("recipe", ["int4", "fit16", "q8", "f16"])
def test_every_recipe_runs_in_stock_llama(recipe: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    path = done(tiny_checkpoint, tmp_path / "out.gguf", recipe=recipe)
    with Stock(path, n_ctx=64, threads=2, gpu=None) as stock:
        stock.verify([1, 2, 3])
        logits = stock.logits().copy()
    assert np.isfinite(logits).all() and logits.std() > 0


def test_slices_and_threads_do_not_change_a_byte(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = done(tiny_checkpoint, tmp_path / "whole.gguf").read_bytes()
    monkeypatch.setattr(planning, "SLICE_VALUES", 256 * 7)
    assert done(tiny_checkpoint, tmp_path / "sliced.gguf").read_bytes() == whole
    assert convert(tiny_checkpoint, tmp_path / "single.gguf", threads=1)
    assert (tmp_path / "single.gguf").read_bytes() == whole


def test_quantized_bytes_are_those_of_ggml(tiny_f32: Path, tiny_int4: Path) -> None:
    plain, packed = GgufFile.open(tiny_f32), GgufFile.open(tiny_int4)
    for name, info in packed.tensors.items():
        rows = tensor(plain, name).reshape(-1, info.shape[0])
        assert (quantize(info.type.name, rows).reshape(-1) == packed.array(name)).all(), name


@pytest.mark.parametrize("way", ["float16", "float32", "nested", "sharded", "split", "extras"])
def test_ways_to_store_a_checkpoint_give_the_same_file(way: str, small: Path, tmp_path: Path) -> None:
    """Same weights, same name, same bytes: dtype, prefix, shards and per-expert tensors are only storage."""
    config = made.write_config(tmp_path / "unused")
    weights = made.values_for(config)
    other = tmp_path / "model"
    if way in ("float16", "float32"):
        made.checkpoint(other, tensors=weights, dtype={"float16": "F16", "float32": "F32"}[way])
    elif way == "nested":
        nested = {"model_type": "clover_moe", "text_config": made.CONFIG}
        made.checkpoint(other, config=nested, tensors=weights, prefix="model.language_model.")
    elif way == "sharded":
        made.checkpoint(other, tensors=weights, shards=5)
    elif way == "split":
        made.checkpoint(other, tensors=made.split_experts(weights, config.expert_width), shards=3)
    else:
        skipped = {"model.visual.patch.weight": np.ones((2, 2)), "mtp.fc.weight": np.ones((2, 2))}
        made.checkpoint(other, tensors=weights | skipped)
    mine = done(small, tmp_path / "a.gguf").read_bytes()
    assert done(other, tmp_path / "b.gguf").read_bytes() == mine


def test_tied_embeddings_make_the_head(tmp_path: Path) -> None:
    config = made.CONFIG | {"tie_word_embeddings": True}
    weights = made.values_for(made.write_config(tmp_path / "unused"))
    del weights["lm_head.weight"]
    folder = made.checkpoint(tmp_path / "tied", config=config, tensors=weights)
    file = GgufFile.open(done(folder, tmp_path / "out.gguf", recipe="f32"))
    assert (tensor(file, "output.weight") == weights["model.embed_tokens.weight"]).all()


def test_a_bare_trunk_converts_and_says_it_cannot_draft(tmp_path: Path) -> None:
    folder = tmp_path / "trunk"
    config = made.write_config(folder, made.no_preview())
    made.checkpoint(folder, config=made.no_preview(), tensors=made.values_for(config))
    plan = convert(folder, tmp_path / "out.gguf", dry_run=True)
    assert isinstance(plan, Plan)
    assert "the checkpoint has no preview weights: the file will run one token at a time" in plan.notes
    assert not Spec.from_gguf(GgufFile.open(done(folder, tmp_path / "out.gguf"))).can_draft


def test_dry_run_tells_the_exact_size_and_writes_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = convert(small, dry_run=True)
    assert isinstance(plan, Plan)
    assert list(tmp_path.iterdir()) == []
    assert plan.output == Path("model-int4.gguf")
    assert "12 x routed experts: q5_0 instead of q4_k, whose blocks do not divide the rows" in plan.notes
    path = done(small)
    assert path == plan.output and path.stat().st_size == plan.size
    assert sum(sum(types.values()) for types in plan.by_class().values()) < plan.size


def test_overrides_change_types_and_the_last_wins(small: Path, tmp_path: Path) -> None:
    path = done(
        small,
        tmp_path / "out.gguf",
        recipe="f16",
        overrides=["blk.*.ffn_*_exps.weight=q8_0", ("blk.2.ffn_up_exps.weight", "F32")],
    )
    tensors = GgufFile.open(path).tensors
    assert tensors["blk.1.ffn_up_exps.weight"].type.name == "q8_0"
    assert tensors["blk.2.ffn_up_exps.weight"].type.name == "f32"
    assert tensors["blk.1.attn_qkv.weight"].type.name == "f16"


def test_progress_counts_up_to_the_whole(small: Path, tmp_path: Path) -> None:
    seen: list[object] = []
    done(small, tmp_path / "out.gguf", progress=seen.append)
    by_stage: dict[str, list[int]] = {}
    for step in seen:
        by_stage.setdefault(step.stage, []).append(step.done)  # type: ignore[attr-defined]
        assert step.total == seen[0].total  # type: ignore[attr-defined]
    assert list(by_stage) == ["fetching", "converting", "checking"]
    for counts in by_stage.values():
        assert counts == sorted(counts)
    assert by_stage["converting"][-1] == by_stage["checking"][-1] == seen[0].total  # type: ignore[attr-defined]


def test_the_model_card_gives_licence_and_base(small: Path, tmp_path: Path) -> None:
    (small / "README.md").write_text(
        "---\nlicense: apache-2.0\nbase_model: Qwen/Qwen3.6-35B-A3B\n---\n# Hi\n"
    )
    try:
        keys = GgufFile.open(done(small, tmp_path / "out.gguf")).keys
    finally:
        (small / "README.md").unlink()
    assert keys["general.license"] == "apache-2.0"
    assert keys["general.base_model.0.repo_url"] == "https://huggingface.co/Qwen/Qwen3.6-35B-A3B"
    assert (keys["general.base_model.0.organization"], keys["general.name"]) == ("Qwen", "model")


def test_every_key_of_ours_is_documented(tiny_int4: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/format.md").read_text()
    ours = [key for key in GgufFile.open(tiny_int4).keys if key.startswith("clover.")]
    assert len(ours) > 15
    for key in ours:
        assert f"`{key}`" in page or f"`.{key.rpartition('.')[2]}`" in page, key
