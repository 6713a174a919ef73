"""Our kernels on the card in this machine: against the emulator kernel by kernel, then their times at full size.

python -m tests.cuda.on_device record TRACES        # anywhere, slow: what every kernel must write
python -m tests.cuda.on_device check TRACES [--time] # on a machine with a card
python -m tests.cuda.on_device layer KIND ROWS       # there too: the kernels of a first layer once, for a profiler
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from clover_local.model.spec import Spec
from clover_local.model.weights import wanted
from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda.device import Device
from clover_local.runtime.cuda.network import BLOCKS, Network, Place, build, router_width
from clover_local.runtime.cuda.passes import Launch

from . import synthetic as S
from .trace import SCENARIO, Session, trace

SHORT = (("store", 5), ("preview", 11), ("verify", 19), ("commit", 13), ("store", 1))
CASES = {
    "small-mixed": (S.SMALL, S.MIXED, SCENARIO),
    "small-int4": (S.SMALL, S.INT4, SCENARIO),
    "slice-q4": (S.SLICE, S.Q4, SHORT),
    "slice-int4": (S.SLICE, S.INT4, SHORT),
}
GRAPHS = (("verify", 1), ("verify", 8), ("preview", 16), ("verify", 32))
KEPT = 5000  # values of an array that a trace holds
LEAST = 60  # outputs to compare before a near-tie of two experts may part the two machines
TOLERANCE = 0.05  # of the norm: one step of a quantized activation, grown through a few random layers


def record(folder: Path) -> None:
    """Run every case on the emulator and keep what each kernel wrote."""
    from .emulation import Emulator

    for name, (spec, recipe, scenario) in CASES.items():
        machine = Emulator()
        session = Session(S.network(spec, recipe, machine, 512), machine)
        np.savez_compressed(
            folder / f"{name}.npz", **{key: sampled(value) for key, value in trace(session, scenario)}
        )


def sampled(value: np.ndarray) -> np.ndarray:
    """A few thousand evenly spaced values of an array."""
    return value.reshape(-1)[:: max(1, value.size // KEPT | 1)]


def check(folder: Path) -> bool:
    """Compare every kernel's output with the emulator's; print the worst of each kernel."""
    good = True
    for name, (spec, recipe, scenario) in CASES.items():
        started, device = time.time(), Device()
        session = Session(S.network(spec, recipe, device, 512), device)
        device.prepare(one for kind, rows in (*scenario, *GRAPHS) for one in session.launches(kind, rows))
        want = np.load(folder / f"{name}.npz")
        worst: dict[str, tuple[float, str]] = defaultdict(lambda: (0.0, ""))
        compared, parted = 0, ""
        for key, value in trace(session, scenario):
            if key not in want or parted:
                continue
            compared += 1
            if ".moe_route." in key and difference(sampled(value), want[key]) > TOLERANCE:
                parted = key  # a near-tie of two experts: from here on they are two different models
                continue
            kernel = ".".join(key.split(".")[3:])
            error = difference(sampled(value), want[key])
            if not error <= worst[kernel][0]:
                worst[kernel] = (error, key)
        same = graphs_agree(session)
        ok = same and compared >= LEAST and all(error <= TOLERANCE for error, _ in worst.values())
        good &= ok
        print(
            f"{name}: {'ok' if ok else 'DIFFERS'}, graphs {'equal' if same else 'DIFFER'}, "
            f"{time.time() - started:.0f} s, {compared} outputs compared{parted and ', until ' + parted}"
        )
        for kernel, (error, key) in sorted(worst.items()):
            print(f"    {kernel:28} {error:.1e} {key if error > TOLERANCE else ''}", flush=True)
        device.close()
    return good


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Norm of the difference over the norm; infinite when something is not a number."""
    if ours.shape != theirs.shape:
        return float("inf")
    ours, theirs = (np.asarray(x, np.float64) for x in (ours, theirs))
    finite = np.isfinite(theirs)
    if not (np.isfinite(ours) == finite).all():
        return float("inf")
    scale = np.linalg.norm(theirs[finite])
    return float(np.linalg.norm(ours[finite] - theirs[finite]) / max(scale, 1e-30))


def graphs_agree(session: Session) -> bool:
    """A captured pass with overlapping kernels gives exactly the logits of kernels run one by one, every time."""
    device = session.machine
    assert isinstance(device, Device)
    for kind, rows in GRAPHS:
        tokens = np.random.default_rng(rows).integers(4, session.net.spec.vocab, rows).tolist()
        launches = session.launches(kind, rows)
        session.begin(kind, rows, tokens)
        device.run(launches)
        want = session.logits(rows)
        graph = device.capture(launches)
        for _ in range(20):
            device.write(session.net.work.logits, np.full(want.size, np.nan, np.float32))
            device.replay(graph)
            if not np.array_equal(session.logits(rows), want):
                return False
    return True


# --- times at full size --------------------------------------------------------------------------------------

TOKENS = 1024  # rows of the embedding that the timed passes use


def full_network(recipe: Mapping[str, str], device: Device) -> Network:
    """The 35B shape; big tensors are one random stretch laid end to end."""
    rng = np.random.default_rng(0)
    spec = S.with_preview(replace(S.FULL, coreset_top_p=0.999), rng)  # the coreset's work without its effect
    stretches: dict[tuple[str, float], tuple[int, int]] = {}
    places = {}
    for name, shape in wanted(spec).items():
        kind = S.type_of(name, shape, recipe)
        if name == "token_embd.weight":
            table = rng.normal(0, 1, (TOKENS, spec.hidden)).astype(np.float32)
            places[name] = Place(device.place(table), "f32")
        elif kind == "f32":
            places[name] = Place(device.place(S.tensor(name, shape, kind, rng)), kind)
        else:
            places[name] = Place(_tile(name, shape, kind, stretches, device, rng), kind)
    return build(spec, places, S.empty_state(spec, device, 4096), device, max_seen=512)


def _tile(
    name: str, shape: tuple[int, ...], kind: str, stretches: dict[tuple[str, float], tuple[int, int]], device: Device,
    rng: np.random.Generator,
) -> int:  # fmt: skip
    output = any(part in name for part in ("ssm_out", "attn_output", "ffn_down"))
    std = shape[0] ** -0.5 / (8 if output else 1)
    if (kind, std) not in stretches:
        count = 150_001
        stretches[kind, std] = device.place(S.blocks(kind, count, std, rng)), count * BLOCKS[kind][1]
    source, length = stretches[kind, std]
    total = int(np.prod(shape)) // BLOCKS[kind][0] * BLOCKS[kind][1]
    target = device.alloc(total)
    for at in range(0, total, length):
        device.copy(target + at, source, min(length, total - at))
    return target


def steer(net: Network, device: Device, experts: int) -> None:
    """Random routers whose picks lie among the first `experts`: the rows of all others are zero, and of so many
    random logits the best eight are above it."""
    spec, rng = net.spec, np.random.default_rng(experts)
    for layer in range(spec.layers):
        router = rng.normal(0, spec.hidden**-0.5, (spec.experts, spec.hidden)).astype(np.float32)
        router[experts:] = 0
        device.write(net.places[f"blk.{layer}.ffn_gate_inp.weight"].address, router)


def group(one: Launch, spec: Spec) -> str:
    """A name for kernels that do the same in every layer."""
    if one.kernel != "dense":
        return one.kernel
    if one.args.add:
        return "dense out"
    return {spec.vocab: "dense head", router_width(spec): "dense router"}.get(one.args.ld, "dense in")


def times(recipe_name: str, recipe: Mapping[str, str], plan: list[tuple[str, int, int, bool]]) -> None:
    """Median time of each pass (kind, rows, experts in play, whether to break it down by kernel)."""
    device = Device()
    net = full_network(recipe, device)
    session, rng = Session(net, device), np.random.default_rng(1)
    session.past, steered = 512, 0
    device.prepare(one for kind, rows, *_ in plan for one in session.launches(kind, rows))
    for kind, rows, experts, detail in plan:
        if experts != steered:
            steer(net, device, experts)
            steered = experts
        session.begin(kind, rows, rng.integers(0, TOKENS, rows).tolist())
        launches = session.launches(kind, rows)
        graph = device.capture(launches)
        device.milliseconds(graph, 5)
        samples = device.milliseconds(graph, 30)
        count = device.read(net.work.route, np.int32, 1)[0] - 1
        print(
            f"{recipe_name} {kind:8} {rows:2} rows, {experts:3} experts in play, {count:3} used: "
            f"{np.median(samples):.3f} ms (min {min(samples):.3f}) in {len(launches)} kernels",
            flush=True,
        )
        if detail:
            breakdown(session, device, launches)
    device.close()


def layer(kind: str, rows: int) -> None:
    """Run the embedding and the first layer of a pass of int4 kernel by kernel, its routers among 32 experts."""
    device = Device()
    session = Session(full_network(S.INT4, device), device)
    session.past = 512
    steer(session.net, device, 32)
    session.begin(kind, rows, np.random.default_rng(1).integers(0, TOKENS, rows).tolist())
    device.run(session.launches(kind, rows)[:10])
    device.close()


def breakdown(session: Session, device: Device, launches: list[Launch]) -> None:
    """Time of each group of kernels alone, replayed as a graph of its own."""
    groups = defaultdict(list)
    for one in launches:
        groups[group(one, session.net.spec)].append(one)
    parts = []
    for name, members in groups.items():
        graph = device.capture(members)
        device.milliseconds(graph, 2)
        ms = float(np.median(device.milliseconds(graph, 9)))
        parts.append((ms, f"{name} {1000 * ms:.0f} us / {len(members)} = {1000 * ms / len(members):.2f}"))
    print("    " + "; ".join(text for _, text in sorted(parts, reverse=True)), flush=True)


PLAN = [
    ("verify", 1, 256, True), ("verify", 2, 256, False), ("verify", 4, 256, False), ("verify", 8, 256, False),
    ("verify", 16, 256, False), ("verify", 8, 32, True), ("verify", 16, 32, True), ("verify", 32, 32, False),
    ("preview", 16, 32, True), ("preview", 32, 32, True), ("commit", 8, 32, True),
]  # fmt: skip


def main() -> int:
    """The commands above."""
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("record", "check"):
        actions.add_parser(action).add_argument("folder", type=Path)
    actions.choices["check"].add_argument("--time", action="store_true")
    one = actions.add_parser("layer")
    one.add_argument("kind", choices=["verify", "preview"])
    one.add_argument("rows", type=int, choices=range(1, A.MAX_ROWS + 1), metavar="ROWS")
    options = parser.parse_args()
    if options.action == "record":
        record(options.folder)
        return 0
    if options.action == "layer":
        layer(options.kind, options.rows)
        return 0
    good = check(options.folder)
    if options.time:
        times("int4", S.INT4, PLAN)
    print("everything agrees" if good else "SOMETHING DIFFERS")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
