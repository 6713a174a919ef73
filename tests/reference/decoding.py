"""The decoding loops in their shortest form, greedy, over anything with the engine's verbs."""

from collections.abc import Sequence

from .engine import ReferenceEngine


def plain(engine: ReferenceEngine, prompt: Sequence[int], tokens: int) -> list[int]:
    """One token at a time; ends with the first stop token, which is included."""
    engine.begin_response(engine.spec.processing)
    rows = engine.prefill(prompt)
    assert rows is not None
    out = [int(rows.ids[-1])]
    while len(out) < tokens and out[-1] not in engine.spec.stop_ids:
        out.append(int(engine.step(out[-1]).ids[0]))
    return out


def denoise(
    engine: ReferenceEngine, prompt: Sequence[int], tokens: int, threshold: float, block: int
) -> tuple[list[int], int, int]:
    """LowConfidence block denoising: response (stop token included), blocks and passes."""
    engine.begin_response(engine.spec.processing)
    engine.prefill(prompt)
    out: list[int] = []
    blocks = passes = 0
    while len(out) < tokens:
        ids = [engine.spec.mask_id] * block
        blocks += 1
        while engine.spec.mask_id in ids:
            rows = engine.preview(ids)
            passes += 1
            masked = [i for i, token in enumerate(ids) if token == engine.spec.mask_id]
            sure = [i for i in masked if rows.p[i] > threshold] or [max(masked, key=lambda i: rows.p[i])]
            for i in sure:
                ids[i] = int(rows.ids[i])
        stop = next((i for i, token in enumerate(ids) if token in engine.spec.stop_ids), None)
        out += ids if stop is None else ids[: stop + 1]
        if stop is not None:
            break
        engine.verify(ids)
        engine.commit(len(ids))
    return out[:tokens], blocks, passes
