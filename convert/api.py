"""`convert()`: a checkpoint folder or hub id becomes one GGUF. The command calls exactly this."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from clover_local.convert.config import Config, read_config
from clover_local.convert.files import maybe_object
from clover_local.convert.metadata import Origin, keys
from clover_local.convert.output import GO_ON, Output
from clover_local.convert.plan import SLICE_VALUES, Plan, general_notes, match_names, place
from clover_local.convert.run import Job, Progress, Report, carry_out
from clover_local.convert.source import Source, open_source
from clover_local.convert.tokenizer import read_tokenizer
from clover_local.errors import CloverError, UsageError
from clover_local.quant.recipes import Rule, parse_override, recipe as find_recipe, weight_type


def convert(
    source: str | Path,
    output: str | Path | None = None,
    *,
    recipe: str = "int4",
    overrides: Sequence[str | Rule] = (),
    force: bool = False,
    dry_run: bool = False,
    discard_shards: bool = False,
    threads: int | None = None,
    progress: Report | None = None,
) -> Path | Plan:
    """Convert and quantize a checkpoint in one pass; returns the file's path, or the plan for a dry run.

    `source` is a folder in Hugging Face layout or a hub id `owner/name`. `output` is a file or a folder; left
    out, `<name>-<recipe>.gguf` here. `overrides` are (pattern, type) pairs or "pattern=type" texts over GGUF
    tensor names, the last match winning. A conversion that was interrupted goes on where it stopped when the
    same call is made again; `threads`, `progress` and `discard_shards` may differ then. Raises CloverError
    (ModelError, UsageError) with a sentence for everything that can go wrong.
    """
    rules = [parse_override(o) if isinstance(o, str) else (o[0], weight_type(o[1])) for o in overrides]
    if threads is not None and threads < 1:
        raise UsageError("--threads must be at least 1")
    find_recipe(recipe, 1)  # an unknown name is refused before anything is read or downloaded
    opened = open_source(source, discard_shards=discard_shards)
    try:
        job = prepare(opened, output, recipe, rules)
        if dry_run:
            return job.plan
        return _write(job, force, threads or os.cpu_count() or 1, progress or (lambda _: None))
    finally:
        opened.close()


def prepare(source: Source, output: str | Path | None, recipe: str, rules: list[Rule]) -> Job:
    """Read everything but the weights and decide the whole file."""
    config = read_config(source.folder)
    tokenizer = read_tokenizer(source.folder, config)
    wanted, places, dropped = match_names(config, source.weight_map)
    made = find_recipe(recipe, config.layers)
    pairs = list(keys(config, tokenizer, _origin(source), wanted, made.file_type))
    header, pieces, fallbacks = place(pairs, wanted, made, rules)
    notes = general_notes(config, set(places), dropped, bool(tokenizer.templates)) + fallbacks
    plan = Plan(source.name, _output(output, source.name, made.name), made.name, header, pieces, tuple(notes))
    return Job(plan, config, source, places)


def _output(output: str | Path | None, name: str, recipe: str) -> Path:
    default = f"{name}-{recipe}.gguf"
    path = Path(output).expanduser() if output is not None else Path(default)
    return path / default if path.is_dir() else path


def _origin(source: Source) -> Origin:
    """Licence and base model from the front matter of the model card, where there is one."""
    card = source.folder / "README.md"
    data = {}
    if card.is_file():
        from huggingface_hub import metadata_load

        data = metadata_load(card) or {}
    base = data.get("base_model") or ()
    bases = tuple(base) if isinstance(base, list) else (base,) if isinstance(base, str) else ()
    license_name = data.get("license")
    return Origin(
        name=source.name,
        repo=source.repo,
        license=license_name if isinstance(license_name, str) else None,
        base_models=tuple(b for b in bases if isinstance(b, str)),
    )


def _write(job: Job, force: bool, threads: int, report: Report) -> Path:
    path = job.plan.output
    if path.exists() and not force:
        raise CloverError(f"{path} exists already", "choose another name with -o, or overwrite it with --force")
    if not path.parent.is_dir():
        raise CloverError(f"the folder {path.parent} does not exist")
    out = Output(path, fingerprint(job), job.plan.header)
    try:
        _check_room(job, out)
        carry_out(job, out, threads, report)
        out.complete()
    finally:
        out.close()
    return path


def _check_room(job: Job, out: Output) -> None:
    """Say before the work begins when the disk cannot hold the result and the downloads."""
    folder, download = job.source.missing_bytes(job.needed(out.done))
    rest = sum(piece.nbytes for piece in job.plan.pieces if piece.name not in out.done)
    same = os.stat(folder).st_dev == os.stat(out.partial).st_dev
    for where, need in ((job.plan.output.parent, rest + download * same), (folder, download * (not same))):
        free = shutil.disk_usage(where).free
        if need > free:
            raise CloverError(
                f"{where} has {free / 1e9:.1f} GB free, {need / 1e9:.1f} GB are needed for {job.plan.output.name}",
                GO_ON,
            )


def fingerprint(job: Job) -> str:
    """What must not change between a conversion and its resumption: the file's header and the checkpoint."""
    mark = hashlib.sha256(job.plan.header.data)
    for line in (str(SLICE_VALUES), *job.source.identity()):
        mark.update(line.encode() + b"\n")
    return mark.hexdigest()
