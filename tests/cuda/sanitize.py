"""Every kernel on small models, for NVIDIA's compute-sanitizer; what it computes is checked elsewhere.

compute-sanitizer --tool memcheck  --error-exitcode 9 python -m tests.cuda.sanitize mixed fit16 iq
compute-sanitizer --tool racecheck --error-exitcode 9 python -m tests.cuda.sanitize mixed
compute-sanitizer --tool initcheck --error-exitcode 9 python -m tests.cuda.sanitize --bare mixed
"""

import argparse
import ctypes as C
import sys

import numpy as np

from clover_local.runtime.cuda import arguments as A
from clover_local.runtime.cuda.arguments import MAX_ROWS
from clover_local.runtime.cuda.device import Device
from clover_local.runtime.cuda.network import GRAIN, Network, head_grain, most_slots

from . import synthetic as S
from .trace import Session

IQ = {
    "gate_exps": "iq3_xxs",
    "up_exps": "iq3_s",
    "down_exps": "iq4_xs",
    "_shexp": "iq4_nl",
    "attn_q": "q4_0",
    "attn": "q4_1",
    "token_embd": "iq4_xs",
    "": "q5_1",
}
RECIPES = {"mixed": S.MIXED, "int4": S.INT4, "fit16": S.FIT16, "iq": IQ}
CONTEXT = 96
PASSES = (("preview", 32), ("store", 5), ("verify", 19), ("commit", 13), ("store", 1), ("verify", 2), ("preview", 11),
          ("verify", 8), ("store", 32), ("commit", 32), ("verify", 13))  # fmt: skip


class Bare(Device):
    """A device whose memory holds nothing until it is written, so that initcheck sees what is read before."""

    def alloc(self, nbytes: int) -> int:
        """Reserve memory."""
        pointer = self._check(self._api.cuMemAlloc(max(nbytes, 1)))
        self._memory.append(pointer)
        return int(pointer)


def clear(net: Network, device: Device) -> None:
    """Zero what must be zero before the first pass: the committed state of no token, and counters.

    And quantized activations: rows beyond those of a pass fill up a tile of eight; their products are dropped.
    """
    spec, zeros = net.spec, lambda count: np.zeros(count, np.float32)
    for acts, rows, k, grain in (
        (net.work.h, MAX_ROWS, spec.hidden, GRAIN),
        (net.work.mixed, MAX_ROWS, spec.value_size, head_grain(spec.gdn_head_dim)),
        (net.work.attended, MAX_ROWS, spec.heads * spec.head_dim, head_grain(spec.head_dim)),
        (net.work.act, most_slots(spec), spec.expert_width, 1),
    ):
        device.write(acts.q, zeros(rows * k // 4))
        if grain == 1:
            device.write(acts.s, zeros(rows * k // 32 * 2))
        else:
            device.write(acts.scale, zeros(rows * -(-k // (32 * grain))))
            device.write(acts.sum, zeros(rows * -(-k // 256) * 4))
    for layer in spec.gdn_layers:
        device.write(net.state.ring[layer], zeros(3 * spec.channels))
        device.write(net.state.memory[layer], zeros(spec.value_heads * spec.gdn_head_dim**2))
    device.write(net.work.usage, zeros(spec.layers * spec.experts))
    device.write(net.work.arrived, zeros(spec.value_heads))
    device.write(net.work.route, zeros(C.sizeof(A.Route) // 4))  # pointers are read beside their count


def main() -> int:
    """Run the passes kernel by kernel and as graphs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+", choices=RECIPES)
    parser.add_argument("--bare", action="store_true", help="do not clear memory when it is reserved")
    options = parser.parse_args()
    good = True
    for name in options.recipes:
        device = Bare() if options.bare else Device()
        session = Session(S.network(S.SMALL, RECIPES[name], device, CONTEXT), device)
        clear(session.net, device)
        device.prepare(one for kind, rows in PASSES for one in session.launches(kind, rows))
        rng = np.random.default_rng(0)
        for kind, rows in PASSES:
            session.begin(kind, rows, rng.integers(4, S.SMALL.vocab, rows).tolist())
            launches = session.launches(kind, rows)
            device.run(launches)
            if kind in ("verify", "preview"):  # running it once more changes nothing
                device.replay(device.capture(launches))
                device.finish()
                good &= bool(np.isfinite(session.logits(rows)[:, 4:]).all())
            session.end(kind, rows if kind != "commit" else 0)
            session.past = min(session.past, CONTEXT - 32)
        device.close()
        print(f"{name}: {'finite' if good else 'NOT FINITE'}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
