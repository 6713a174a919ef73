"""Copies of the most wanted experts on the card; all experts lie in the computer's memory, so nothing can be lost.

A slot holds one expert of one layer. Our kernels reach every expert through a pointer, so it makes no difference to
the numbers which memory it is read from.
"""

import ctypes as C
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clover_local.ggml.backend import Backend, Buffer, Context, upload
from clover_local.ggml.lib import Node, functions
from clover_local.ggml.types import tensor_type
from clover_local.model.spec import Spec

PARTS = ("gate", "up", "down")
EMPTY = -1


def expert_name(layer: int, part: str) -> str:
    """The tensor of all experts of a layer; part is gate, up or down."""
    return f"blk.{layer}.ffn_{part}_exps.weight"


def memory_of(node: Node) -> np.ndarray:
    """A tensor in the computer's memory as uint8 [bytes], not a copy."""
    size = functions["ggml_nbytes"](node)
    return np.ctypeslib.as_array((C.c_uint8 * size).from_address(int(node.contents.data)))


@dataclass
class Slots:
    """The experts on the card. `held[layer]`: int32 [slots], the expert in each, or EMPTY."""

    spec: Spec
    held: list[np.ndarray]
    nodes: dict[str, Node]  # by the name of all experts' tensor: [k, rows, slots]
    source: Mapping[str, Node]  # all experts, in the computer's memory
    context: Context
    buffer: Buffer | None

    @classmethod
    def fill(
        cls,
        spec: Spec,
        source: Mapping[str, Node],
        backend: Backend,
        counts: Sequence[int],
        order: np.ndarray | None = None,
    ) -> "Slots":
        """Reserve `counts[layer]` slots a layer and fill them in `order` (int [layers, experts]); None: by number."""
        context, nodes = Context(len(PARTS) * spec.layers), {}
        for layer, count in enumerate(counts):
            for part in PARTS if count else ():
                all_of_them = source[expert_name(layer, part)].contents
                kind = tensor_type(int(all_of_them.type)).name
                nodes[expert_name(layer, part)] = context.tensor(kind, *all_of_them.ne[:2], count)
        held = [np.full(count, EMPTY, np.int32) for count in counts]
        try:
            buffer = Buffer(context, backend, weights=True) if nodes else None
        except BaseException:
            context.free()
            raise
        slots = cls(spec, held, nodes, source, context, buffer)
        for layer, count in enumerate(counts):
            wanted = range(spec.experts) if order is None else order[layer]
            for slot, expert in enumerate(wanted[:count]):
                slots.put(layer, slot, int(expert))
        return slots

    def put(self, layer: int, slot: int, expert: int) -> int:
        """Copy an expert into a slot, over whoever is there; returns the bytes copied. No pass may be running."""
        copied = 0
        for part in PARTS:
            name = expert_name(layer, part)
            size = self.source[name].contents.nb[2]
            data = memory_of(self.source[name])[expert * size : (expert + 1) * size]
            upload(self.nodes[name], data, slot * size)
            copied += size
        self.held[layer][slot] = expert
        return copied

    def addresses(self, layer: int, part: str) -> np.ndarray:
        """Where each expert's matrix is read, uint64 [experts]: its copy on the card, or the computer's memory."""
        name = expert_name(layer, part)
        node = self.source[name].contents
        found = np.uint64(node.data) + np.arange(self.spec.experts, dtype=np.uint64) * np.uint64(node.nb[2])
        filled = np.flatnonzero(self.held[layer] != EMPTY)
        if len(filled):
            own = self.nodes[name].contents
            found[self.held[layer][filled]] = np.uint64(own.data) + filled.astype(np.uint64) * np.uint64(
                own.nb[2]
            )
        return found

    @property
    def resident(self) -> np.ndarray:
        """Which experts are on the card, bool [layers, experts]."""
        found = np.zeros((self.spec.layers, self.spec.experts), bool)
        for layer, held in enumerate(self.held):
            found[layer, held[held != EMPTY]] = True
        return found

    @property
    def bytes_each(self) -> tuple[int, ...]:
        """Bytes of one expert, by layer."""
        return tuple(
            sum(int(self.source[expert_name(layer, part)].contents.nb[2]) for part in PARTS)
            for layer in range(self.spec.layers)
        )

    def free(self) -> None:
        """Give the card's memory back."""
        if self.buffer is not None:
            self.buffer.free()
        self.context.free()
