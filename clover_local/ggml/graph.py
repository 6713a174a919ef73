"""A ggml graph under construction: operations as methods, then allocation and computing on a backend."""

import ctypes as C
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from clover_local.errors import CardFullError, CloverError
from clover_local.ggml import lib
from clover_local.ggml.backend import Backend, Context
from clover_local.ggml.lib import Node, functions

_uids = itertools.count(1000)
NEOX = 2  # ggml's rope mode
PRECISION_F32 = 10


def _op(name: str) -> Callable[..., Node]:
    function = functions[f"ggml_{name}"]

    def method(self: "Graph", *arguments: Any) -> Node:
        return function(self.context.handle, *arguments)

    method.__name__ = name
    return method


class Graph:
    """Builds nodes in `context`; every method returns a node. Shapes are in ggml order, ne0 first.

    Operations without a docstring are ggml's own, with its arguments.
    """

    def __init__(self, max_nodes: int) -> None:
        self.context = Context(2 * max_nodes, max_nodes)
        self.handle = functions["ggml_new_graph_custom"](self.context.handle, max_nodes, False)
        self.backend: Backend | None = None
        self._allocator: int | None = None
        self._scheduler: int | None = None
        self._parts: dict[tuple[int, int], lib.CGraph] = {}

    add, sub, mul, div = _op("add"), _op("sub"), _op("mul"), _op("div")
    silu, sigmoid, softplus, exp = _op("silu"), _op("sigmoid"), _op("softplus"), _op("exp")
    relu, step, log, neg = _op("relu"), _op("step"), _op("log"), _op("neg")
    sum_rows, argmax, soft_max, cont = _op("sum_rows"), _op("argmax"), _op("soft_max"), _op("cont")
    transpose, swiglu, swiglu_split = _op("transpose"), _op("swiglu"), _op("swiglu_split")
    mul_mat, mul_mat_id, get_rows, set_rows = (
        _op("mul_mat"),
        _op("mul_mat_id"),
        _op("get_rows"),
        _op("set_rows"),
    )
    ssm_conv, cpy, concat, pad_ext = _op("ssm_conv"), _op("cpy"), _op("concat"), _op("pad_ext")
    rms_norm, scale, scale_bias, clamp, fill = (
        _op("rms_norm"),
        _op("scale"),
        _op("scale_bias"),
        _op("clamp"),
        _op("fill"),
    )
    permute, repeat_4d, argsort_top_k = _op("permute"), _op("repeat_4d"), _op("argsort_top_k")
    cont_2d, flash_attn_ext, gated_delta_net = _op("cont_2d"), _op("flash_attn_ext"), _op("gated_delta_net")
    soft_max_ext = _op("soft_max_ext")

    def input(self, type_name: str, *shape: int) -> Node:
        """A tensor the host fills before each compute; kept whole while the graph runs."""
        node = self.context.tensor(type_name, *shape)
        functions["ggml_set_input"](node)
        functions["ggml_set_output"](node)  # otherwise its memory is reused after the last read
        return node

    def output(self, node: Node) -> Node:
        """Mark a node as a result: computed, and not overwritten by later nodes."""
        functions["ggml_set_output"](node)
        self.expand(node)
        return node

    def expand(self, node: Node) -> None:
        """Put a node, and what it needs, next in the order of computing."""
        functions["ggml_build_forward_expand"](self.handle, node)

    def new(self, type_name: str, *shape: int) -> Node:
        """A tensor of the graph's own memory."""
        return self.context.tensor(type_name, *shape)

    def reshape(self, node: Node, *shape: int) -> Node:
        return functions[f"ggml_reshape_{len(shape)}d"](self.context.handle, node, *shape)

    def view(self, node: Node, shape: Sequence[int], strides: Sequence[int] = (), offset: int = 0) -> Node:
        """A window on a node; `strides` (of all dimensions but the first) and `offset` in bytes."""
        return functions[f"ggml_view_{len(shape)}d"](self.context.handle, node, *shape, *strides, offset)

    def whole(self, view: Node) -> Node:
        """The tensor that a view is a window on."""
        return C.cast(view.contents.view_src, type(view)) if view.contents.view_src else view

    def rope(self, node: Node, positions: Node, dims: int, theta: float) -> Node:
        """Rotate the first `dims` values of each head (neox pairs); `positions` int32 [rows].

        For text the interleaved multi-section form of this family equals neox, and only neox fuses on CUDA.
        """
        return functions["ggml_rope_ext"](
            self.context.handle, node, positions, None, dims, NEOX, 0, theta, 1, 0, 1, 32, 1
        )

    def add_sinks(self, softmax: Node, logits: Node) -> None:
        """Give a softmax one more logit per head (dimension 2), whose weight is dropped from the result."""
        functions["ggml_soft_max_add_sinks"](softmax, logits)

    def precise(self, node: Node) -> None:
        """Have an attention node accumulate in float32."""
        functions["ggml_prec_set_acc"](node, PRECISION_F32)

    @property
    def size(self) -> int:
        """Nodes to compute."""
        return self.handle.contents.n_nodes

    def operations(self) -> dict[str, int]:
        """How often each operation occurs."""
        counts: dict[str, int] = {}
        for index in range(self.size):
            name = functions["ggml_op_name"](self.handle.contents.nodes[index].contents.op).decode()
            counts[name] = counts.get(name, 0) + 1
        return counts

    def allocate(self, backend: Backend, host: Backend | None = None) -> int:
        """Give every node memory on a backend; returns the bytes taken there.

        With `host`, the CPU computes what reads weights in its memory; ggml's scheduler moves the rest.
        """
        self.backend = backend
        if host is not None:
            return self._schedule(backend, host)
        self._check_supported(backend)
        kind = functions["ggml_backend_get_default_buffer_type"](backend.handle)
        self._allocator = functions["ggml_gallocr_new"](kind)
        if not functions["ggml_gallocr_alloc_graph"](self._allocator, self.handle):
            raise self._too_large(backend)
        self.handle.contents.uid = next(_uids)
        return functions["ggml_gallocr_get_buffer_size"](self._allocator, 0)

    def _schedule(self, backend: Backend, host: Backend) -> int:
        both = (C.c_void_p * 2)(backend.handle, host.handle)
        size = self.handle.contents.size
        self._scheduler = functions["ggml_backend_sched_new"](both, None, 2, size, False, True)
        if not functions["ggml_backend_sched_alloc_graph"](self._scheduler, self.handle):
            raise self._too_large(backend)
        return functions["ggml_backend_sched_get_buffer_size"](self._scheduler, backend.handle)

    def _too_large(self, backend: Backend) -> CloverError:
        return CardFullError(
            f"{backend.device.name} has too little free memory for a pass: {lib.last_error()}",
            "use a smaller context (-c)",
        )

    def _check_supported(self, backend: Backend) -> None:
        bad = set()
        for index in range(self.size):
            node = self.handle.contents.nodes[index]
            if not functions["ggml_backend_supports_op"](backend.handle, node):
                bad.add(functions["ggml_op_name"](node.contents.op).decode())
        if bad:
            raise CloverError(
                f"{backend.device.name} cannot compute {', '.join(sorted(bad))} in this build of ggml",
                "run on the CPU: --device cpu",
            )

    def compute(self) -> None:
        """Queue the graph on its backend; results are there after the backend's `synchronize`."""
        assert self.backend is not None, "allocate first"
        if self._scheduler:
            status = functions["ggml_backend_sched_graph_compute_async"](self._scheduler, self.handle)
        else:
            status = functions["ggml_backend_graph_compute_async"](self.backend.handle, self.handle)
        if status != 0:
            raise CloverError(
                f"{self.backend.device.name} failed to compute a pass: {lib.last_error() or status}"
            )

    def first_users(self, sources: Sequence[Node]) -> list[int]:
        """For each tensor the index of the first node that computes with it, in the order of computing."""
        addresses = {C.addressof(source.contents): i for i, source in enumerate(sources)}
        found: dict[int, int] = {}
        for index in range(self.size):
            for source in self.handle.contents.nodes[index].contents.src:
                if source in addresses:
                    found.setdefault(addresses[source], index)
        return [found[i] for i in range(len(sources))]

    def compute_part(self, start: int, end: int) -> None:
        """Queue the nodes from `start` to before `end`; what is before them must have run."""
        assert self.backend is not None and not self._scheduler, "allocate first, on one backend"
        part = self._parts.get((start, end))
        if part is None:
            whole = self.handle.contents
            part = self._parts[start, end] = lib.CGraph()
            C.memmove(C.byref(part), C.byref(whole), C.sizeof(part))
            at = C.cast(whole.nodes, C.c_void_p).value or 0
            part.nodes = C.cast(at + start * C.sizeof(C.c_void_p), type(whole.nodes))
            part.n_nodes, part.n_leafs, part.uid = end - start, 0, next(_uids)
        status = functions["ggml_backend_graph_compute_async"](self.backend.handle, C.byref(part))
        if status != 0:
            raise CloverError(
                f"{self.backend.device.name} failed to compute a pass: {lib.last_error() or status}"
            )

    def synchronize(self) -> None:
        """Wait for the graph where the backend alone cannot: when a scheduler runs parts of it on the CPU."""
        if self._scheduler:
            functions["ggml_backend_sched_synchronize"](self._scheduler)

    def free(self) -> None:
        if self._scheduler:
            functions["ggml_backend_sched_free"](self._scheduler)
            self._scheduler = None
        if self._allocator:
            functions["ggml_gallocr_free"](self._allocator)
            self._allocator = None
        self.context.free()
