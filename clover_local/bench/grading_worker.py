"""The grading process: one JSON question a line on stdin, one JSON verdict a line on stdout.

Guards the run against expressions that hang, eat memory or crash the interpreter. It is no sandbox against
code: math-verify parses LaTeX and arithmetic, it is never asked to execute what a model wrote.
"""

import contextlib
import json
import logging
import os
import signal
import sys


def main() -> None:
    """Answer until stdin closes. Arguments: seconds for one answer, megabytes for the process."""
    seconds, megabytes = int(sys.argv[1]), int(sys.argv[2])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not land between the verdicts
    logging.disable(logging.CRITICAL)
    _limit_memory(megabytes)
    try:
        from clover_local.bench import equivalence
    except ImportError as problem:
        print(json.dumps({"error": str(problem)}), file=out, flush=True)
        return
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        _alarm(seconds + 1)  # ends the process even inside C code, should the parent be gone
        question: dict = {}
        try:
            question = json.loads(line)
            verdict = _judge(equivalence, question)
        except MemoryError:
            verdict = {"right": False, "answer": question.get("answer"), "reason": "memory limit"}
        except Exception:  # math-verify lets some sympy errors through; such an answer is not right
            verdict = {"right": False, "answer": question.get("answer"), "reason": "unreadable"}
        _alarm(0)
        print(json.dumps(verdict), file=out, flush=True)


def _judge(equivalence: object, question: dict) -> dict:
    gold, strict = question["gold"], question["strict_units"]
    if question["answer"] is not None:
        right = equivalence.equivalent(gold, question["answer"], strict_units=strict)  # type: ignore[attr-defined]
        return {"right": right, "answer": question["answer"], "reason": "graded"}
    right, shown = equivalence.equivalent_in_text(  # type: ignore[attr-defined]
        gold, question["text"], strict_units=strict
    )
    return {"right": right, "answer": shown, "reason": "graded" if shown is not None else "no answer"}


def _alarm(seconds: int) -> None:
    if hasattr(signal, "alarm"):  # not on Windows
        signal.alarm(seconds)


def _limit_memory(megabytes: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
