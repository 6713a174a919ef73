"""Recipes: from a tensor's name and shape to its type, the same for API and command."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from clover_local.errors import UsageError
from clover_local.ggml.quantize import needs_importance
from clover_local.ggml.types import tensor_type

Rule = tuple[str, str]
"""A pattern over GGUF names and the type it gives; of a list of rules the first that matches counts."""

# Types a weight can have. Those that need an importance matrix are refused where none is given.
WEIGHT_TYPES = (
    "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_xs", "iq4_nl",
    "mxfp4", "iq3_s", "iq3_xxs", "q3_k", "iq2_s", "iq2_xs", "iq2_xxs", "q2_k",
)  # fmt: skip

# What takes a type's place when a row is no multiple of its block (256 values): the next larger type with
# blocks of 32. A row that does not fit those either is stored as f16.
FALLBACKS = {
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
    "iq4_xs": "iq4_nl",
    "iq3_s": "iq4_nl",
    "iq3_xxs": "iq4_nl",
    "iq2_s": "iq4_nl",
    "iq2_xs": "iq4_nl",
    "iq2_xxs": "iq4_nl",
}

# ggml's operators read these as F32 only, or they are too small and too sensitive to be worth a bit.
ALWAYS_F32 = ("*.ssm_conv1d.weight", "*_norm.weight", "*.ssm_a", "*.bias", "*.ffn_gate_inp_shexp.weight")
KEPT_F32: tuple[Rule, ...] = (
    ("blk.*.ffn_gate_inp.weight", "f32"),  # the router decides which experts run
    ("blk.*.ssm_alpha.weight", "f32"),
    ("blk.*.ssm_beta.weight", "f32"),
)


@dataclass(frozen=True)
class Recipe:
    """A named table of rules. `file_type` is llama.cpp's number for a file of mostly this type."""

    name: str
    about: str
    file_type: int
    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Choice:
    """The type of one tensor; `wanted` differs from it when the row did not fit."""

    type: str
    wanted: str


def _outer(layers: int, pattern: str, type_name: str) -> tuple[Rule, ...]:
    """A type for the first and the last third of the layers, where errors hurt most."""
    edge = layers // 3
    return tuple((pattern.format(i=i), type_name) for i in range(layers) if not edge <= i < layers - edge)


def _int4(layers: int) -> tuple[Rule, ...]:
    return (
        ("blk.*.ffn_*_exps.weight", "q4_k"),
        ("blk.*.ffn_*_shexp.weight", "q8_0"),
        ("token_embd.weight", "q4_k"),
        ("*", "q6_k"),
    )


def _fit16(layers: int) -> tuple[Rule, ...]:
    return (
        *_outer(layers, "blk.{i}.ffn_down_exps.weight", "q3_k"),  # the down projection suffers most
        ("blk.*.ffn_*_exps.weight", "q2_k"),
        ("blk.*.ffn_*_shexp.weight", "q6_k"),
        ("token_embd.weight", "q4_k"),
        ("output.weight", "q4_k"),
        ("*", "q5_k"),
    )


@dataclass(frozen=True)
class _Kind:
    about: str
    file_type: int
    rules: Callable[[int], tuple[Rule, ...]]


RECIPES: dict[str, _Kind] = {
    "int4": _Kind("4-bit experts, 6 to 8 bits elsewhere", 15, lambda n: KEPT_F32 + _int4(n)),
    "fit16": _Kind(
        "2- and 3-bit experts: 35B within 13 GB, for a card of 16 GB", 12, lambda n: KEPT_F32 + _fit16(n)
    ),
    "q8": _Kind("8 bits", 7, lambda n: (*KEPT_F32, ("*", "q8_0"))),
    "f16": _Kind("16-bit floats", 1, lambda n: (*KEPT_F32, ("*", "f16"))),
    "f32": _Kind("32-bit floats", 0, lambda n: (("*", "f32"),)),
}


def recipe(name: str, layers: int) -> Recipe:
    """The recipe of that name for a model of so many layers; raises UsageError for an unknown one."""
    kind = RECIPES.get(name.lower())
    if kind is None:
        raise UsageError(f"there is no recipe {name!r}", f"recipes: {', '.join(RECIPES)}")
    return Recipe(name.lower(), kind.about, kind.file_type, kind.rules(layers))


def parse_override(text: str) -> Rule:
    """`PATTERN=TYPE` as a rule, its type checked."""
    pattern, found, type_name = text.rpartition("=")
    if not found or not pattern or not type_name:
        raise UsageError(
            f"--tensor {text!r} is not of the form PATTERN=TYPE",
            "for example: --tensor 'blk.*.ffn_down_exps.weight=q6_k'",
        )
    return pattern, weight_type(type_name)


def weight_type(name: str) -> str:
    """A weight type's plain name; raises UsageError when it is unknown or cannot be made here."""
    plain = name.strip().lower()
    if plain not in WEIGHT_TYPES:
        raise UsageError(f"there is no weight type {name!r}", f"types: {', '.join(WEIGHT_TYPES)}")
    if needs_importance(plain):
        raise UsageError(
            f"the type {plain} can only be made with an importance matrix", "choose q2_k or iq3_xxs"
        )
    return plain


def fitting(type_name: str, row_length: int) -> str:
    """The type itself when rows of that length are whole blocks of it, else the next one that fits."""
    if row_length % tensor_type(type_name).block == 0:
        return type_name
    second = FALLBACKS.get(type_name, "f16")
    return second if row_length % tensor_type(second).block == 0 else "f16"


def is_fixed(name: str, dims: int) -> bool:
    """Whether a tensor stays F32 whatever the recipe says."""
    return dims < 2 or any(fnmatchcase(name, pattern) for pattern in ALWAYS_F32)


def choose(made: Recipe, name: str, shape: tuple[int, ...], overrides: Iterable[Rule] = ()) -> Choice:
    """The type of a tensor (shape as numpy counts, rows last); later overrides win over earlier ones."""
    if is_fixed(name, len(shape)):
        return Choice("f32", "f32")
    rules = (*reversed(tuple(overrides)), *made.rules)
    wanted = next(type_name for pattern, type_name in rules if fnmatchcase(name, pattern))
    return Choice(fitting(wanted, shape[-1]), wanted)


def check_overrides(overrides: Iterable[Rule], names: Iterable[tuple[str, int]]) -> None:
    """Raise UsageError for a pattern that changes nothing; `names` are tensors with their dimension count."""
    free = [name for name, dims in names if not is_fixed(name, dims)]
    for pattern, type_name in overrides:
        if not any(fnmatchcase(name, pattern) for name in free):
            near = next((n for n in free if re.sub(r"\W", "", pattern) in re.sub(r"\W", "", n)), free[-1])
            raise UsageError(
                f"--tensor {pattern}={type_name} matches no matrix of the model",
                f"patterns match whole names such as {near}; use * for what may vary",
            )
