"""What a conversion will do, decided before anything is written: types, places and sizes."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from clover_local.convert.config import Config
from clover_local.convert.header import Header, Key, Slot, build
from clover_local.convert.mapping import Part, has_preview, parts, plain_name
from clover_local.errors import ModelError
from clover_local.ggml.types import TensorType, tensor_type
from clover_local.quant.classes import tensor_class
from clover_local.quant.recipes import Recipe, Rule, check_overrides, choose

SLICE_VALUES = 2 << 20  # values quantized at a time by one thread: 8 MB of float32


@dataclass(frozen=True)
class Piece:
    """A part with its type and its place: `offset` from the start of the file, `nbytes` there."""

    part: Part
    name: str
    type: TensorType
    offset: int
    nbytes: int

    @property
    def slice_rows(self) -> int:
        """Rows of one slice; a slice never spans two pieces."""
        return max(1, SLICE_VALUES // self.part.row_length)

    @property
    def slice_count(self) -> int:
        return -(-self.part.row_count // self.slice_rows)

    def slices(self) -> list[tuple[int, int]]:
        """(first row, rows) of every slice, in order."""
        total, step = self.part.row_count, self.slice_rows
        return [(first, min(step, total - first)) for first in range(0, total, step)]


@dataclass(frozen=True)
class Plan:
    """A conversion before it runs. Sizes are bytes."""

    name: str
    output: Path
    recipe: str
    header: Header
    pieces: tuple[Piece, ...]
    notes: tuple[str, ...]
    """Sentences worth telling: what was left out, which types fell back."""

    @property
    def size(self) -> int:
        return self.header.size

    def by_class(self) -> dict[str, dict[str, int]]:
        """Bytes per tensor class and type."""
        out: dict[str, Counter[str]] = {}
        for piece in self.pieces:
            kind = "preview weights" if piece.part.is_key else tensor_class(piece.name)
            out.setdefault(kind, Counter())[piece.type.name] += piece.nbytes
        return {kind: dict(types) for kind, types in out.items()}


@dataclass(frozen=True)
class Place:
    """Where a source tensor lies: its name in the checkpoint, and its shard."""

    name: str
    shard: str


def match_names(config: Config, weight_map: dict[str, str]) -> tuple[list[Part], dict[str, Place], int]:
    """The parts to make, the place of every source by plain name, and how many tensors are left out.

    Raises ModelError naming what is missing and what is unexpected, together.
    """
    places: dict[str, Place] = {}
    dropped = 0
    for name, shard in weight_map.items():
        plain = plain_name(name)
        if plain is None:
            dropped += 1
        elif plain in places:
            raise ModelError(f"the checkpoint holds the tensor {plain} twice, the second time as {name}")
        else:
            places[plain] = Place(name, shard)
    wanted = list(parts(config, set(places)))
    needed = {source for part in wanted for source in part.sources}
    missing, unexpected = sorted(needed - places.keys()), sorted(places.keys() - needed)
    faults = [f"lacks {_some(missing)}"] * bool(missing) + [f"holds the unknown {_some(unexpected)}"] * bool(
        unexpected
    )
    if faults:
        raise ModelError(
            f"the checkpoint {' and '.join(faults)}", "its config.json must belong to its weights"
        )
    return wanted, places, dropped


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    count = f"{len(names)} tensors: " if len(names) > 1 else "tensor "
    return f"{count}{shown}{' …' if len(names) > 4 else ''}"


def place(
    keys: list[tuple[str, Key]], wanted: list[Part], made: Recipe, overrides: list[Rule]
) -> tuple[Header, tuple[Piece, ...], list[str]]:
    """Choose types, lay the file out, and say where a type did not fit."""
    tensors = [part for part in wanted if not part.is_key]
    check_overrides(overrides, [(part.target, len(part.shape)) for part in tensors])
    choices = {part.target: choose(made, part.target, part.shape, overrides) for part in tensors}
    types = {name: tensor_type(choice.type) for name, choice in choices.items()}
    sizes = {part.target: part.row_count * types[part.target].row_bytes(part.row_length) for part in tensors}
    header = build(keys, [Slot(p.target, p.shape, types[p.target].id, sizes[p.target]) for p in tensors])
    pieces = [Piece(p, p.target, types[p.target], header.tensors[p.target], sizes[p.target]) for p in tensors]
    filled = dict(header.reserved)
    for part in wanted:
        if part.is_key:  # a layer's share of a metadata array; layers follow each other
            nbytes = 4 * part.row_count * part.row_length
            pieces.append(
                Piece(part, f"{part.target}[{part.layer}]", tensor_type("f32"), filled[part.target], nbytes)
            )
            filled[part.target] += nbytes
    fell = Counter(
        (choice.wanted, choice.type, tensor_class(name))
        for name, choice in choices.items()
        if choice.type != choice.wanted
    )
    notes = [
        f"{count} x {kind}: {type_name} instead of {wanted_type}, whose blocks do not divide the rows"
        for (wanted_type, type_name, kind), count in fell.items()
    ]
    return header, tuple(pieces), notes


def general_notes(config: Config, names: set[str], dropped: int, has_template: bool) -> list[str]:
    """What a person should know about this checkpoint."""
    notes = []
    if dropped:
        notes.append(f"{dropped} tensors for vision or multi-token prediction are left out")
    if not has_preview(config, names):
        notes.append("the checkpoint has no preview weights: the file will run one token at a time")
    if not has_template:
        notes.append("the checkpoint has no chat template")
    return notes
