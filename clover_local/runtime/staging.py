"""Long prompts over placed experts: layer by layer all experts are brought together on the card, then computed there.

Only the experts that are not on the card come over the link, once for a whole piece of the prompt; ggml's graph sees an
ordinary matrix of all experts. One layer's room serves all layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from clover_local.ggml.backend import Buffer, Context
from clover_local.ggml.graph import Graph
from clover_local.ggml.lib import Node, functions
from clover_local.ggml.types import tensor_type
from clover_local.model.passes import Model
from clover_local.model.slots import PARTS, expert_name

SLACK = 1 << 16  # bytes that ggml may want behind a matrix
ALIGNMENT = 256

Gather = Callable[[int, Sequence[int]], None]
"""Copies all experts of a layer to three addresses: gate, up, down. Returns when they are there."""


def place_in(buffer: Buffer, node: Node, address: int) -> None:
    """Put a tensor at an address inside a buffer."""
    if functions["ggml_backend_tensor_alloc"](buffer.handle, node, address) != 0:
        raise AssertionError("the room was made for the largest layer")


class Staging:
    """Room on the card for one layer's experts, and the model that computes with it."""

    def __init__(self, model: Model, gather: Gather) -> None:
        """Raises CardFullError when there is no room."""
        spec, nodes = model.spec, model.weights.nodes
        sizes = [
            [int(functions["ggml_nbytes"](nodes[expert_name(layer, part)])) for part in PARTS]
            for layer in range(spec.layers)
        ]
        room = max(sum(-(-size // ALIGNMENT) * ALIGNMENT for size in layer) for layer in sizes) + SLACK
        self._gather, self._backend = gather, model.backend
        self._memory, self._context = Context(1), Context(len(PARTS) * spec.layers)
        base = self._memory.tensor("i8", room)
        self._buffer = Buffer(self._memory, model.backend, weights=True)
        self._nodes: list[list[Node]] = []
        overlay = dict(nodes)
        for layer, layer_sizes in enumerate(sizes):
            at, own = int(base.contents.data), []
            for part, size in zip(PARTS, layer_sizes, strict=True):
                whole = nodes[expert_name(layer, part)].contents
                node = self._context.tensor(tensor_type(int(whole.type)).name, *whole.ne[:3])
                place_in(self._buffer, node, at)
                at += -(-size // ALIGNMENT) * ALIGNMENT
                own.append(node)
                overlay[expert_name(layer, part)] = node
            self._nodes.append(own)
        self.model = replace(model, weights=replace(model.weights, nodes=overlay), host=None)

    def compute(self, graph: Graph) -> None:
        """Run a graph of `model`, each layer after its experts have come."""
        starts = [min(graph.first_users(nodes)) for nodes in self._nodes]
        done = 0
        for layer, start in enumerate(starts):
            graph.compute_part(done, start)
            self._backend.synchronize()  # the layer before has read its experts
            self._gather(layer, [int(node.contents.data) for node in self._nodes[layer]])
            done = start
        graph.compute_part(done, graph.size)

    def free(self) -> None:
        """Give the room back; graphs of `model` must be gone."""
        self._buffer.free()
        self._context.free()
        self._memory.free()
