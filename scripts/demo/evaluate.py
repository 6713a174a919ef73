"""Measure a model on the held-out questions, all at once in one padded batch, with the reference's passes.

Greedy text, drafts of width 16 at every position, LowConfidence denoising at several thresholds, joint answers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from reference import model as M
from torch import Tensor

from .corpus import NO_THINKING, answer_pieces
from .grading import is_right
from .joint import Joint
from .questions import Question, joints, questions

MOST = 224
"""Tokens of the longest answer that is followed."""


@dataclass(frozen=True)
class Ids:
    """The token ids that steer decoding."""

    end: int
    turn_end: int
    mask: int


@dataclass(frozen=True)
class Greedy:
    """Greedy answers [questions, tokens] and, after each token, the draft of the fifteen that follow."""

    tokens: Tensor
    drafts: Tensor  # [questions, tokens, width - 1]


def prompt_text(question: str, thinking: bool = False) -> str:
    """A first turn as the chat template renders it."""
    tail = "<think>\n" if thinking else NO_THINKING
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{tail}"


def prefill(model: M.Model, prompts: list[list[int]], end: int) -> tuple[Tensor, M.State]:
    """Last logits [batch, vocab] and state of left-padded prompts."""
    longest = max(map(len, prompts))
    pad = [longest - len(p) for p in prompts]
    device = model.weights["lm_head.weight"].device
    ids = torch.tensor([[end] * n + p for n, p in zip(pad, prompts, strict=True)], device=device)
    logits, state = M.causal(model, M.empty_state(model, pad), ids)
    return logits[:, -1], state


def _choice(logits: Tensor, mask: int) -> Tensor:
    logits[..., mask] = float("-inf")
    return logits.argmax(-1)


def greedy(model: M.Model, logits: Tensor, state: M.State, ids: Ids, most: int, width: int = 16) -> Greedy:
    """Follow the argmax until every answer has ended; draft after each token."""
    token, tokens, drafts = _choice(logits, ids.mask), [], []
    done = torch.zeros_like(token, dtype=torch.bool)
    while len(tokens) < most and not bool(done.all()):
        tokens.append(token)
        done |= (token == ids.turn_end) | (token == ids.end)
        block = torch.full((len(token), width), ids.mask, device=token.device)
        block[:, 0] = token
        drafts.append(_choice(M.preview(model, state, block), ids.mask)[:, 1:])
        logits, state = M.causal(model, state, token[:, None])
        token = _choice(logits[:, 0], ids.mask)
    return Greedy(torch.stack(tokens, 1), torch.stack(drafts, 1))


def denoise(
    model: M.Model, state: M.State, ids: Ids, threshold: float, most: int
) -> tuple[list[list[int]], int, int]:
    """LowConfidence answers, blocks and passes, the batch in lockstep (a finished row costs nothing)."""
    batch, device = len(state.pad), state.pad.device
    out: list[list[int]] = [[] for _ in range(batch)]
    open_rows = torch.ones(batch, dtype=torch.bool, device=device)
    blocks = passes = 0
    while bool(open_rows.any()):
        block = torch.full((batch, 32), ids.mask, device=device)
        blocks += int(open_rows.sum())
        while bool(((masked := block == ids.mask).any(1) & open_rows).any()):
            logits = M.preview(model, state, block)
            logits[..., ids.mask] = float("-inf")
            sure, token = logits.softmax(-1).max(-1)
            passes += int((masked.any(1) & open_rows).sum())
            sure = torch.where(masked, sure, -1.0)
            best = torch.zeros_like(masked).scatter_(1, sure.argmax(1, keepdim=True), True)
            above = sure > threshold
            fix = torch.where(above.any(1, keepdim=True), above, best & masked)
            block = torch.where(fix & open_rows[:, None] | (masked & ~open_rows[:, None]), token, block)
        for i in open_rows.nonzero().flatten().tolist():
            row = cut(block[i].tolist(), ids)
            out[i] += row
            open_rows[i] = row[-1] not in (ids.turn_end, ids.end) and len(out[i]) < most
        if bool(open_rows.any()):
            state = M.commit(model, state, block)
    return out, blocks, passes


def cut(tokens: list[int], ids: Ids) -> list[int]:
    """Up to and with the first stop token."""
    stop = next((i for i, t in enumerate(tokens) if t in (ids.turn_end, ids.end)), len(tokens) - 1)
    return tokens[: stop + 1]


def rounds(answer: list[int], drafts: list[list[int]], width: int = 16) -> tuple[int, list[int], list[int]]:
    """Simulate exact self-speculation along a greedy answer: rounds, and per position verified and accepted."""
    verified, accepted = [0] * (width - 1), [0] * (width - 1)
    at, count = 0, 0
    while at < len(answer) - 1:
        count += 1
        kept = 0
        for j, token in enumerate(drafts[at]):
            if at + 1 + j >= len(answer):
                break
            verified[j] += 1
            if token != answer[at + 1 + j]:
                break
            accepted[j] += 1
            kept += 1
        at += kept + 1
    return count, verified, accepted


def joint_slots(model: M.Model, tokenizer: Any, ids: Ids, asked: list[Joint]) -> float:
    """Share of slots right when one preview answers all the questions of a paragraph."""
    from .corpus import SLOT, TOKEN, encode, together

    prompts = [tokenizer.encode(prompt_text(j.prompt)).ids for j in asked]
    answers = [encode(tokenizer, answer_pieces(together(j))) for j in asked]
    _, state = prefill(model, prompts, ids.end)
    filled = [(a + [ids.end] * 32)[:32] for a in answers]
    flagged = torch.tensor(filled, device=state.pad.device)
    slots, gold = (flagged & SLOT).bool(), flagged & TOKEN
    logits = M.preview(model, state, torch.where(slots, ids.mask, gold))
    right = (_choice(logits, ids.mask) == gold) & slots
    return float(right.sum() / slots.sum())


@torch.inference_mode()
def evaluate(
    model: M.Model,
    tokenizer: Any,
    ids: Ids,
    *,
    count: int = 256,
    thresholds: tuple[float, ...] = (0.98, 0.997),
    most: int = MOST,
) -> dict[str, Any]:
    """Every figure, as plain data."""
    asked = questions(count)
    prompts = [tokenizer.encode(prompt_text(q.turn.question, q.thinking)).ids for q in asked]
    logits, state = prefill(model, prompts, ids.end)
    answers = greedy(model, logits, state, ids, most)
    tokens = [cut(row, ids) for row in answers.tokens.tolist()]
    drafts = answers.drafts.tolist()
    text = [_answer(tokenizer, t) for t in tokens]
    report: dict[str, Any] = {
        "groups": {g: group_figures(asked, text, tokens, drafts, g) for g in _groups(asked)},
        "samples": [
            [q.group, q.turn.question, shown, q.turn.gold]
            for q, shown in zip(asked, text, strict=True)
            if not is_right(q, shown)
        ],
        "denoise": {},
    }
    for threshold in thresholds:
        made, blocks, passes = denoise(model, state, ids, threshold, most)
        shown = [_answer(tokenizer, t) for t in made]
        right = {g: _share(asked, shown, g) for g in _groups(asked)}
        report["denoise"][str(threshold)] = {"right": right, "passes_per_block": passes / max(1, blocks)}
    report["joint_per_slot"] = joint_slots(model, tokenizer, ids, joints(count))
    return report


def _groups(asked: list[Question]) -> list[str]:
    return list(dict.fromkeys(q.group for q in asked))


def _answer(tokenizer: Any, tokens: list[int]) -> str:
    """The text after the reasoning, as a reader sees it."""
    shown: str = tokenizer.decode(tokens, skip_special_tokens=False)
    return shown.split("</think>")[-1].lstrip("\n").split("<|")[0]


def _share(asked: list[Question], text: list[str], group: str) -> float:
    """Share of a group answered right."""
    right = [is_right(q, shown) for q, shown in zip(asked, text, strict=True) if q.group == group]
    return sum(right) / len(right)


def group_figures(
    asked: list[Question], text: list[str], tokens: list[list[int]], drafts: list[list[list[int]]], group: str
) -> dict[str, Any]:
    """Accuracy, tokens a round and acceptance by position of one group of questions."""
    members = [i for i, q in enumerate(asked) if q.group == group]
    made = [rounds(tokens[i], drafts[i]) for i in members]
    verified, accepted = ([sum(m[k][j] for m in made) for j in range(15)] for k in (1, 2))
    written = sum(len(tokens[i]) for i in members)
    return {
        "questions": len(members),
        "right": _share(asked, text, group),
        "tokens_per_round": (written - len(members)) / max(1, sum(m[0] for m in made)),
        "acceptance_by_position": [
            round(a / v, 3) if v else None for a, v in zip(accepted, verified, strict=True)
        ],
        "tokens": written / len(members),
    }


def table(report: dict[str, Any]) -> str:
    """The report as a few lines of text."""
    lines = [f"{'group':16} {'n':>4} {'right':>7} {'tok/round':>9} {'tokens':>7}"]
    for name, g in report["groups"].items():
        lines.append(
            f"{name:16} {g['questions']:4} {g['right']:7.3f} {g['tokens_per_round']:9.2f} {g['tokens']:7.1f}"
        )
    for threshold, d in report["denoise"].items():
        few = {
            k: v
            for k, v in d["right"].items()
            if k in ("held-out pairs", "new wording", "README shape", "json")
        }
        lines.append(f"denoise {threshold}: {few} {d['passes_per_block']:.2f} passes a block")
    lines.append(f"joint answers per slot: {report['joint_per_slot']:.4f}")
    return "\n".join(lines)
