"""Every tensor of the network: which ones there must be, and where they lie on the device."""

import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from clover_local.errors import CloverError, ModelError
from clover_local.ggml.backend import Backend, Buffer, Context, MappedBuffer, PinnedBuffer, upload
from clover_local.ggml.gguf import GgufFile, TensorInfo
from clover_local.ggml.lib import Node
from clover_local.ggml.quantize import quantize
from clover_local.ggml.types import tensor_type
from clover_local.model.slots import Slots, memory_of
from clover_local.model.spec import CONV_TAPS, Spec

Progress = Callable[[int, int], None]
UPLOAD_CHUNK = 64 << 20  # bytes between two progress reports
COPIERS = 4  # threads that fill locked memory
EMBEDDING = "token_embd.weight"
MERGES: tuple[tuple[str, ...], ...] = (
    ("attn_qkv.weight", "attn_gate.weight"),
    ("ssm_alpha.weight", "ssm_beta.weight"),
    ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
    ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
)
"""Matrices of one layer that meet the same input and may lie behind each other as one (fewer kernels)."""
HALVED = ("ffn_gate_inp.weight", "ssm_alpha.weight")
"""Float32 matrices, merged ones by their first part, with a bf16 copy on a GPU: from 4 rows on ggml's CUDA
kernels are several times faster on it (the checkpoint holds them in bf16, so nothing is lost)."""


def wanted(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Name and shape (ggml order) of every tensor the passes read."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (spec.hidden, spec.vocab),
        "output_norm.weight": (spec.hidden,),
        "output.weight": (spec.hidden, spec.vocab),
    }
    for layer in range(spec.layers):
        own = _attention(spec) if spec.is_attention(layer) else _gdn(spec)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in {**own, **_moe(spec)}.items()}
    return shapes


def _attention(spec: Spec) -> dict[str, tuple[int, ...]]:
    inner, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    return {
        "attn_q.weight": (spec.hidden, 2 * inner),
        "attn_k.weight": (spec.hidden, kv),
        "attn_v.weight": (spec.hidden, kv),
        "attn_output.weight": (inner, spec.hidden),
        "attn_q_norm.weight": (spec.head_dim,),
        "attn_k_norm.weight": (spec.head_dim,),
    }


def _gdn(spec: Spec) -> dict[str, tuple[int, ...]]:
    return {
        "attn_qkv.weight": (spec.hidden, spec.channels),
        "attn_gate.weight": (spec.hidden, spec.value_size),
        "ssm_alpha.weight": (spec.hidden, spec.value_heads),
        "ssm_beta.weight": (spec.hidden, spec.value_heads),
        "ssm_conv1d.weight": (CONV_TAPS, spec.channels),
        "ssm_a": (spec.value_heads,),
        "ssm_dt.bias": (spec.value_heads,),
        "ssm_norm.weight": (spec.gdn_head_dim,),
        "ssm_out.weight": (spec.value_size, spec.hidden),
    }


def _moe(spec: Spec) -> dict[str, tuple[int, ...]]:
    expert, shared = spec.expert_width, spec.shared_width
    return {
        "attn_norm.weight": (spec.hidden,),
        "post_attention_norm.weight": (spec.hidden,),
        "ffn_gate_inp.weight": (spec.hidden, spec.experts),
        "ffn_gate_exps.weight": (spec.hidden, expert, spec.experts),
        "ffn_up_exps.weight": (spec.hidden, expert, spec.experts),
        "ffn_down_exps.weight": (expert, spec.hidden, spec.experts),
        "ffn_gate_inp_shexp.weight": (spec.hidden,),
        "ffn_gate_shexp.weight": (spec.hidden, shared),
        "ffn_up_shexp.weight": (spec.hidden, shared),
        "ffn_down_shexp.weight": (shared, spec.hidden),
    }


def _trim(shape: tuple[int, ...]) -> tuple[int, ...]:
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def check(file: GgufFile, spec: Spec) -> dict[str, TensorInfo]:
    """The tensors the passes read; one ModelError lists all that are missing or misshapen."""
    found: dict[str, TensorInfo] = {}
    problems = []
    for name, shape in wanted(spec).items():
        info = file.tensors.get(name)
        if info is None and name == "output.weight":
            info = file.tensors.get("token_embd.weight")  # a tied head
        if info is None:
            problems.append(f"{name} is missing")
        elif _trim(info.shape) != _trim(shape):
            problems.append(f"{name} has the shape {list(info.shape)}, wanted {list(shape)}")
        else:
            found[name] = info
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ModelError(f"{file.path} does not fit its own description: {'; '.join(problems[:3])}{more}")
    return found


@dataclass
class Weights:
    """The tensors as ggml nodes, by name; merged ones under the tuple of their names' parts."""

    nodes: dict[str, Node]
    merged: dict[tuple[str, ...], Node] = field(default_factory=dict)
    parts: dict[tuple[str, ...], tuple[int, ...]] = field(default_factory=dict)  # rows of each merged part
    half: dict[str, Node] = field(default_factory=dict)  # bf16 copies of float32 matrices, by name
    buffer: Buffer | None = None
    context: Context | None = None
    mapped: mmap.mmap | None = None  # keeps the file's map alive while nodes point into it
    host: "Weights | None" = None  # those that stay in the CPU's memory
    slots: Slots | None = None  # where experts of that memory have copies on the card

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def free(self) -> None:
        if self.slots is not None:
            self.slots.free()
        if self.host is not None:
            self.host.free()
        if self.buffer is not None:
            self.buffer.free()
        if self.context is not None:
            self.context.free()
        self.mapped = None


def load(
    file: GgufFile,
    spec: Spec,
    backend: Backend,
    progress: Progress | None = None,
    host_layers: frozenset[int] = frozenset(),
    slots: Sequence[int] = (),
    order: np.ndarray | None = None,
) -> Weights:
    """Put all weights on a backend: the CPU reads the mapped file as it is, a GPU gets its own copy.

    The routed experts of `host_layers` stay in the mapped file, for the CPU to compute. With `slots` (experts on
    the card, by layer) all experts and the token embedding lie in locked memory, and the first of `order`
    (int [layers, experts], most wanted first) have copies on the card, for our kernels.
    """
    infos = check(file, spec)
    if backend.is_cpu:
        weights = _map(file, infos)
    else:
        stays = {
            name
            for name, info in infos.items()
            if is_expert(name) and (slots or layer_of(name) in host_layers)
        }
        if slots and infos["output.weight"].name != EMBEDDING:
            stays.add(EMBEDDING)
        meter = _Meter(
            sum(info.nbytes for name, info in infos.items() if slots or name not in stays), progress
        )
        weights = _upload(file, {n: info for n, info in infos.items() if n not in stays}, backend, meter)
        if stays:
            left = {name: infos[name] for name in stays}
            try:
                weights.host = _pin(file, left, backend, meter) if slots else _map(file, left)
            except CloverError:
                weights.free()
                raise
            weights.nodes |= weights.host.nodes
    if slots:
        try:
            weights.slots = Slots.fill(spec, weights.nodes, backend, slots, order)
        except CloverError:
            weights.free()
            raise
    return weights


@dataclass
class _Meter:
    """Counts bytes for a progress report; called by several threads."""

    total: int
    progress: Progress | None
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size: int) -> None:
        with self.lock:
            self.done += size
            if self.progress is not None:
                self.progress(self.done, self.total)


def is_expert(name: str) -> bool:
    """Whether a tensor belongs to the routed experts."""
    return name.endswith("_exps.weight")


def layer_of(name: str) -> int | None:
    """The layer in a tensor's name; None for those outside the layers."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blk" else None


def _map(file: GgufFile, infos: dict[str, TensorInfo]) -> Weights:
    context = Context(len(infos))
    base = np.frombuffer(file.data, np.uint8)
    address = base.ctypes.data
    buffer = MappedBuffer(address, len(base))
    nodes = {}
    for name, info in infos.items():
        node = context.tensor(info.type.name, *_trim(info.shape), name=name)
        buffer.place(node, address + info.offset)
        nodes[name] = node
    return Weights(nodes, buffer=buffer, context=context, mapped=file.data)


def _pin(file: GgufFile, infos: dict[str, TensorInfo], backend: Backend, meter: _Meter) -> Weights:
    """Tensors in memory of the computer that the card reads by itself."""
    context = Context(len(infos))
    nodes = {
        name: context.tensor(info.type.name, *_trim(info.shape), name=name) for name, info in infos.items()
    }
    try:
        buffer = PinnedBuffer(context, backend)
    except CloverError:
        context.free()
        raise

    def copy(name: str) -> None:
        target, data = memory_of(nodes[name]), file.array(infos[name].name).view(np.uint8).reshape(-1)
        for start in range(0, len(data), UPLOAD_CHUNK):
            part = data[start : start + UPLOAD_CHUNK]
            target[start : start + len(part)] = part
            meter.add(len(part))

    with ThreadPoolExecutor(min(COPIERS, os.cpu_count() or 1)) as threads:
        list(threads.map(copy, nodes))
    return Weights(nodes, buffer=buffer, context=context)


def _merge_plan(infos: dict[str, TensorInfo]) -> dict[tuple[str, ...], list[TensorInfo]]:
    plan = {}
    for layer_norm in [name for name in infos if name.endswith(".attn_norm.weight")]:
        prefix = layer_norm.removesuffix("attn_norm.weight")
        for parts in MERGES:
            names = tuple(prefix + part for part in parts)
            group = [infos[name] for name in names if name in infos]
            if len(group) == len(names) and len({info.type for info in group}) == 1:
                plan[names] = group
    return plan


def _interleave(group: list[TensorInfo]) -> Iterator[tuple[int, TensorInfo, int, int]]:
    """(target, tensor, source, size) in bytes: matrix by matrix (expert by expert) the parts side by side."""
    target = 0
    for index in range(group[0].shape[2] if len(group[0].shape) == 3 else 1):
        for info in group:
            size = info.nbytes // (info.shape[2] if len(info.shape) == 3 else 1)
            yield target, info, index * size, size
            target += size


def _upload(file: GgufFile, infos: dict[str, TensorInfo], backend: Backend, meter: _Meter) -> Weights:
    plan = _merge_plan(infos)
    inside = {info.name for group in plan.values() for info in group}
    context = Context(2 * len(infos))
    nodes: dict[str, Node] = {}
    copies: list[tuple[Node, int, TensorInfo, int, int]] = []
    for name, info in infos.items():
        if info.name not in inside:
            nodes[name] = context.tensor(info.type.name, *_trim(info.shape), name=name)
            copies.append((nodes[name], 0, info, 0, info.nbytes))
    merged: dict[tuple[str, ...], Node] = {}
    for names, group in plan.items():
        rows = sum(info.shape[1] for info in group)
        shape = (group[0].shape[0], rows, *group[0].shape[2:])
        merged[names] = context.tensor(group[0].type.name, *shape, name=f"{names[0]}+")
        copies += [(merged[names], *place) for place in _interleave(group)]
    half = {}
    for name, node in [*nodes.items(), *((names[0], node) for names, node in merged.items())]:
        if name.split(".", 2)[-1] in HALVED and node.contents.type == tensor_type("f32").id:
            half[name] = context.tensor("bf16", *node.contents.ne[:2], name=f"{name}.bf16")
    buffer = Buffer(context, backend, weights=True)
    for node, target, info, source, size in copies:
        data = file.array(info.name)
        for start in range(0, size, UPLOAD_CHUNK):
            part = data[source + start : source + min(start + UPLOAD_CHUNK, size)]
            upload(node, part, target + start)
            meter.add(len(part))
    for name, node in half.items():
        own = [info for names, group in plan.items() if names[0] == name for info in group]
        values = [file.array(info.name).view(np.float32) for info in own or [infos[name]]]
        upload(node, quantize("bf16", np.concatenate(values).reshape(-1, node.contents.ne[0])))
    parts = {names: tuple(info.shape[1] for info in group) for names, group in plan.items()}
    return Weights(nodes, merged, parts, half, buffer, context)
