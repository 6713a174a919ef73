"""Decides whether our own CUDA kernels run a model: they must be proved against ggml's graphs (selfcheck.py) first.

Both are timed as well, and each pass goes to the faster. Whatever speaks against the kernels (another device, a missing
package, an old driver, a type without a kernel, a failed comparison) is one sentence, and the graphs go on alone.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median

from clover_local.errors import CardFullError, CloverError
from clover_local.ggml.backend import Device, devices
from clover_local.ggml.lib import BINDING
from clover_local.model.passes import Kind, Model
from clover_local.model.spec import Spec
from clover_local.runtime import selfcheck
from clover_local.runtime.cuda.network import unsupported
from clover_local.runtime.graphs import Runner
from clover_local.runtime.placement import CardRunner
from clover_local.runtime.remembered import keep, recall
from clover_local.runtime.response import Response
from clover_local.runtime.selfcheck import words

SWITCH = "CLOVER_KERNELS"  # 0 turns them off
CARD = Path("/dev/nvidiactl")  # there when an NVIDIA driver is loaded
NO_CUDA = (
    "this llama-cpp-python was built without CUDA, so the NVIDIA card here is not used; install one with: "
    f"CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-cache-dir llama-cpp-python=={BINDING}"
)
WIDTHS = (1, 8, 16, 32)  # rows at which both runners are timed; a pass counts as the next wider
WARM, TIMED = 3, 3  # a CUDA graph is captured in its second call and steady from the third


@dataclass(frozen=True)
class Kernels:
    """Our kernels over one model, and the passes they run faster than ggml's graphs on this very card."""

    runner: CardRunner
    wins: frozenset[tuple[Kind, int]]
    key: str = ""
    """The card, the kernels' sources and the kind of model: with the same key the same passes win."""

    def take(self, kind: Kind, rows: int) -> bool:
        """Whether a pass of this kind and row count runs here; a step or prefill is timed as a verify."""
        width = next((width for width in WIDTHS if rows <= width), None)
        return width is not None and (Kind.VERIFY if kind is Kind.STORE else kind, width) in self.wins


def likely(device: Device, spec: Spec, types: Mapping[str, str], kv_types: tuple[str, str]) -> bool:
    """Whether they will run a model, as far as that is known before it is loaded: a plan counts on it."""
    if not device.name.startswith("CUDA") or os.environ.get(SWITCH) == "0" or not _installed():
        return False
    return unsupported(spec, types, ", ".join(sorted(set(kv_types)))) is None


def _installed() -> bool:
    try:
        return find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False


def unused_card() -> bool:
    """Whether an NVIDIA card is here that this llama-cpp-python cannot use."""
    return CARD.exists() and not any(device.is_gpu for device in devices())


def attach(model: Model, n_ctx: int, graphs: Runner) -> tuple[Kernels | None, str | None]:
    """The kernels over a freshly opened model, or None and why not; (None, None) where nobody expects them.

    Raises CardFullError when no memory is left to check them with: a smaller plan leaves some.
    """
    if not model.backend.device.name.startswith("CUDA"):
        return None, NO_CUDA if unused_card() else None
    if os.environ.get(SWITCH) == "0":
        return None, f"our own kernels are off: {SWITCH}=0 is set"
    try:
        from clover_local.runtime.cuda import card, runner
    except ImportError as error:
        return (
            None,
            f"our own kernels are off: {error.name} is missing; run: pip install 'clover-local[cuda]'",
        )
    reason = runner.why_not(model)
    if reason is not None:
        return None, f"our own kernels are off: {reason}"
    try:
        card.usable(runner.ordinal(model))
        kernels = runner.Runner(model, n_ctx)
    except (CloverError, RuntimeError) as error:  # the bindings raise the latter for functions a driver lacks
        hint = error.hint if isinstance(error, CloverError) else None
        return None, f"our own kernels are off: {error}{f'; {hint}' if hint else ''}"
    try:
        outcome = prove(model, n_ctx, graphs, kernels)
    except CardFullError:
        kernels.close()
        raise
    if not outcome.good:
        kernels.close()
        return (
            None,
            f"our own kernels are off: {outcome.sentence}; please report it with the output of clover doctor",
        )
    key = _key(model)
    if model.weights.slots is not None:  # the graphs would have the CPU compute all experts
        return Kernels(kernels, frozenset(product(Kind, WIDTHS)), key), None
    return Kernels(kernels, remembered_wins(key, model, graphs, kernels), key), None


def prove(
    model: Model, n_ctx: int, graphs: Runner, kernels: Runner, *, anew: bool = False
) -> selfcheck.Outcome:
    """The outcome of the self-check on this card; made once per card, driver, kernels and kind of model, or `anew`."""
    from clover_local.runtime.cuda import compiler

    folder = compiler.cache_folder()
    return selfcheck.settle(
        _key(model), folder, lambda: selfcheck.check(model, n_ctx, graphs, kernels), anew=anew
    )


def _key(model: Model) -> str:
    from clover_local.runtime.cuda import card, compiler, runner

    here = card.card(runner.ordinal(model))
    return repr((here, compiler.fingerprint(), selfcheck.model_key(model.spec, runner.types_of(model))))


def remembered_wins(key: str, model: Model, graphs: Runner, kernels: Runner) -> frozenset[tuple[Kind, int]]:
    """What `faster` found at an earlier start with this key, or finds now."""
    try:
        return frozenset((Kind(kind), int(width)) for kind, width in recall("runners", key))
    except (TypeError, ValueError):
        pass  # never timed, or an unreadable note
    wins = faster(model, graphs, kernels)
    keep("runners", key, sorted(wins))
    return wins


def faster(model: Model, graphs: Runner, kernels: Runner) -> frozenset[tuple[Kind, int]]:
    """The (kind, width) at which the kernels win, each pass timed on both over the empty state, in turns."""
    wins = set()
    for kind, width in product((Kind.VERIFY, Kind.PREVIEW), WIDTHS):
        if kind is Kind.PREVIEW and (width == 1 or not model.spec.can_draft):
            continue
        tokens = words(model.spec, width)
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
