"""Decides whether our own CUDA kernels run a model, and proves them against ggml's graphs before they may.

Both are timed as well, and each pass goes to the faster. Whatever speaks against the kernels (another device, a
missing package, a type without a kernel, a failed comparison) is one sentence, and the graphs go on alone.
"""

import os
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np

from clover_local.errors import CloverError
from clover_local.ggml.backend import devices
from clover_local.ggml.lib import BINDING
from clover_local.model.passes import Kind, Model
from clover_local.model.spec import Spec
from clover_local.runtime.graphs import Runner
from clover_local.runtime.response import Response

SWITCH = "CLOVER_KERNELS"  # 0 turns them off
CARD = Path("/dev/nvidiactl")  # there when an NVIDIA driver is loaded
NO_CUDA = (
    "this llama-cpp-python was built without CUDA, so the NVIDIA card here is not used; install one with: "
    f"CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-cache-dir llama-cpp-python=={BINDING}"
)
WIDTHS = (1, 8, 16, 32)  # rows at which both runners are timed; a pass counts as the next wider
WARM, TIMED = 3, 3  # a CUDA graph is captured in its second call and steady from the third
CHECKED_ROWS = 8
CLOSE = 0.99
"""Correlation of the logits of both runners from which on they count as the same network: two of ggml's own
devices correlate at 0.99 and more, a wrong kernel far below."""


@dataclass(frozen=True)
class Kernels:
    """Our kernels over one model, and the passes they run faster than ggml's graphs on this very card."""

    runner: Runner
    wins: frozenset[tuple[Kind, int]]

    def take(self, kind: Kind, rows: int) -> bool:
        """Whether a pass of this kind and row count runs here; a step or prefill is timed as a verify."""
        width = next((width for width in WIDTHS if rows <= width), None)
        return width is not None and (Kind.VERIFY if kind is Kind.STORE else kind, width) in self.wins


def attach(model: Model, n_ctx: int, graphs: Runner) -> tuple[Kernels | None, str | None]:
    """The kernels over a freshly opened model, or None and why not; (None, None) where nobody expects them."""
    if not model.backend.device.name.startswith("CUDA"):
        unused = CARD.exists() and not any(device.is_gpu for device in devices())
        return None, NO_CUDA if unused else None
    if os.environ.get(SWITCH) == "0":
        return None, f"our own kernels are off: {SWITCH}=0 is set"
    try:
        from clover_local.runtime.cuda import runner
    except ImportError as error:
        return (
            None,
            f"our own kernels are off: {error.name} is missing; run: pip install 'clover-local[cuda]'",
        )
    reason = runner.why_not(model)
    if reason is not None:
        return None, f"our own kernels are off: {reason}"
    try:
        kernels = runner.Runner(model, n_ctx)
    except CloverError as error:
        return None, f"our own kernels are off: {error}"
    worst = compare(model, graphs, kernels)
    if worst < CLOSE:
        kernels.close()
        return None, (
            f"our own kernels are off: on this card their logits correlate with ggml's at only {worst:.3f}; "
            "please report it with the output of clover doctor"
        )
    return Kernels(kernels, faster(model, graphs, kernels)), None


def faster(model: Model, graphs: Runner, kernels: Runner) -> frozenset[tuple[Kind, int]]:
    """The (kind, width) at which the kernels win, each pass timed on both over the empty state, in turns."""
    wins = set()
    for kind, width in product((Kind.VERIFY, Kind.PREVIEW), WIDTHS):
        if kind is Kind.PREVIEW and (width == 1 or not model.spec.can_draft):
            continue
        tokens = _tokens(model.spec, width)
        times: dict[Runner, list[float]] = {graphs: [], kernels: []}
        for _ in range(WARM + TIMED):
            for runner, seen in times.items():
                began = time.perf_counter()
                runner.run(kind, tokens, 0, Response())
                seen.append(time.perf_counter() - began)
        theirs, ours = (median(seen[WARM:]) for seen in times.values())
        if ours < theirs:
            wins.add((kind, width))
    return frozenset(wins)


def _tokens(spec: Spec, rows: int) -> list[int]:
    return (np.arange(1, rows + 1) * 7919 % spec.vocab).tolist()


def compare(model: Model, graphs: Runner, kernels: Runner) -> float:
    """The lower correlation of logits over a causal pass and a preview of the empty state, which stays empty."""
    spec = model.spec
    rows = min(CHECKED_ROWS, spec.block_size)
    tokens = _tokens(spec, rows)
    kinds = [Kind.VERIFY, *([Kind.PREVIEW] if spec.can_draft else [])]
    worst = 1.0
    for kind in kinds:
        want = graphs.run(kind, tokens, 0, Response()).logits()
        got = kernels.run(kind, tokens, 0, Response()).logits()
        known = np.isfinite(want)
        if not np.isfinite(got[known]).all():
            return 0.0
        worst = min(worst, float(np.corrcoef(want[known], got[known])[0, 1]))
    return worst
