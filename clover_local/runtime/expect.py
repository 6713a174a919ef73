"""What a plan will cost in time: bytes over bandwidths, plus what launching the kernels takes. An estimate.

A pass of R rows reads every dense matrix once and, of E experts of which a row uses k, E (1 - (1 - k / E)^R) a layer.
Those on the card come at the memory's bandwidth, the others over the link, while the card waits.
"""

from dataclasses import dataclass

from clover_local.model.spec import Spec
from clover_local.runtime.plan import Plan, Sizes

DRAFT_ROWS = 16
VERIFY_ROWS = (2, 4, 6, 8, 12, 16)
SHARES = (0.8, 0.9, 0.95)
KEPT = 0.873
"""Chance that a drafted row is kept, given those before it: `math` in docs/performance.md, an assumption."""


@dataclass(frozen=True)
class Card:
    """Speeds in bytes a second; `launch` seconds a layer and pass in which no memory is read."""

    name: str
    memory: float
    link: float
    launch: float = 25e-6
    reached: float = 0.7
    """Share of the memory's bandwidth that our kernels get; with `launch` and `tile` calibrated in docs/memory.md."""
    tile: float = 14e-6
    """Seconds a layer for each 8 rows beyond the first 8, which the tensor cores take one after another."""


RTX_5070_TI = Card("RTX 5070 Ti, PCIe 5.0", 896e9, 50e9)


@dataclass(frozen=True)
class Expectation:
    """Milliseconds of a plain step, a draft and the best verify; tokens a second."""

    step: float
    draft: float
    verify: float
    plain: float
    self_: float


def distinct(pool: float, picked: float, rows: int) -> float:
    """How many of `pool` experts are read when each of `rows` rows picks `picked` of them."""
    return pool * (1 - (1 - min(picked / pool, 1.0)) ** rows) if pool else 0.0


def seconds(
    spec: Spec, sizes: Sizes, plan: Plan, card: Card, share: float, rows: int, *, draft: bool = False
) -> float:
    """A pass of `rows` rows when `share` of the picks falls on experts on the card; drafts use no other."""
    dense = sum(size for name, size in sizes.fixed.items() if name in DENSE)
    each = sum(sizes.experts) / (spec.layers * spec.experts)
    hot = plan.on_card(spec.experts) * spec.experts
    share = 1.0 if draft else share
    near = distinct(hot, spec.experts_used * share, rows)
    far = distinct(spec.experts - hot, spec.experts_used * (1 - share), rows)
    card_bytes, link_bytes = dense + spec.layers * each * near, spec.layers * each * far
    work = spec.layers * (card.launch + card.tile * (-(-rows // 8) - 1))
    return work + card_bytes / (card.memory * card.reached) + link_bytes / card.link


DENSE = ("output head", "attention", "Gated DeltaNet", "shared experts, router, norms")


def expect(spec: Spec, sizes: Sizes, plan: Plan, card: Card, share: float) -> Expectation | None:
    """The speeds of a plan, None where whole layers' experts are computed by the CPU: nobody knows how fast that is."""
    if plan.host_layers:
        return None
    step = seconds(spec, sizes, plan, card, share, 1)
    draft = seconds(spec, sizes, plan, card, share, DRAFT_ROWS, draft=True)
    rounds = {}
    for rows in VERIFY_ROWS:
        kept = sum(KEPT**i for i in range(rows))
        rounds[rows] = kept / (draft + seconds(spec, sizes, plan, card, share, rows))
    best = max(rounds, key=lambda rows: rounds[rows])
    verify = seconds(spec, sizes, plan, card, share, best)
    plain = 1 / step
    drafted = max(rounds[best], plain) if spec.can_draft else plain
    return Expectation(1e3 * step, 1e3 * draft, 1e3 * verify, plain, drafted)
