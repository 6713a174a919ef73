"""`convert()`: a checkpoint folder or hub id becomes one GGUF; the command takes its two steps one by one."""

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from clover_local.convert.config import read_config
from clover_local.convert.metadata import Origin, keys
from clover_local.convert.output import GO_ON, Output
from clover_local.convert.plan import SLICE_VALUES, Plan, general_notes, match_names, place
from clover_local.convert.run import Job, Report, carry_out
from clover_local.convert.source import LocalSource, Source
from clover_local.convert.tokenizer import read_tokenizer
from clover_local.errors import CloverError, ModelError, UsageError
from clover_local.quant.recipes import Rule, parse_override, weight_type
from clover_local.quant.recipes import recipe as find_recipe


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
    job = prepare(source, output, recipe=recipe, overrides=overrides, discard_shards=discard_shards)
    return job.plan if dry_run else execute(job, force=force, threads=threads, progress=progress)


def prepare(
    source: str | Path,
    output: str | Path | None = None,
    *,
    recipe: str = "int4",
    overrides: Sequence[str | Rule] = (),
    discard_shards: bool = False,
) -> Job:
    """Read everything but the weights and decide the whole file; arguments as for `convert`."""
    rules = [parse_override(o) if isinstance(o, str) else (o[0], weight_type(o[1])) for o in overrides]
    find_recipe(recipe, 1)  # an unknown name is refused before anything is read or downloaded
    opened = open_source(source, discard_shards=discard_shards)
    config = read_config(opened.folder)
    tokenizer = read_tokenizer(opened.folder, config)
    wanted, places, dropped = match_names(config, opened.weight_map)
    made = find_recipe(recipe, config.layers)
    pairs = list(keys(config, tokenizer, _origin(opened), wanted, made.file_type))
    header, pieces, fallbacks = place(pairs, wanted, made, rules)
    notes = general_notes(config, set(places), dropped, bool(tokenizer.templates)) + fallbacks
    path = _output(output, f"{opened.name}-{made.name}.gguf")
    return Job(Plan(opened.name, path, made.name, header, pieces, tuple(notes)), config, opened, places)


def execute(
    job: Job, *, force: bool = False, threads: int | None = None, progress: Report | None = None
) -> Path:
    """Carry out what `prepare` decided; returns the path of the finished file."""
    if threads is not None and threads < 1:
        raise UsageError("--threads must be at least 1")
    path = job.plan.output
    if path.exists() and not force:
        raise CloverError(
            f"{path} exists already", "choose another name with -o, or overwrite it with --force"
        )
    if not path.parent.is_dir():
        raise CloverError(f"the folder {path.parent} does not exist")
    _check_room(job)
    out = Output(path, fingerprint(job), job.plan.header)
    try:
        carry_out(job, out, threads or os.cpu_count() or 1, progress or (lambda _: None))
        out.complete()
    finally:
        out.close()
    return path


def _output(output: str | Path | None, default: str) -> Path:
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


def _check_room(job: Job) -> None:
    """Say before the work begins when the disk cannot hold the result and the downloads."""
    path = job.plan.output
    begun = Output.done_before(path, fingerprint(job))
    rest = sum(piece.nbytes for piece in job.plan.pieces if piece.name not in begun)
    folder, download = job.source.missing_bytes(job.needed(begun))
    same = folder.stat().st_dev == path.parent.stat().st_dev
    for where, need in ((path.parent, rest + download * same), (folder, download * (not same))):
        free = shutil.disk_usage(where).free
        if need > free:
            raise CloverError(
                f"{where} has {free / 1e9:.1f} GB free, {path.name} needs {need / 1e9:.1f} GB", GO_ON
            )


def fingerprint(job: Job) -> str:
    """What must not change between a conversion and its resumption: the file's header and the checkpoint."""
    mark = hashlib.sha256(job.plan.header.data)
    for line in (str(SLICE_VALUES), *job.source.identity()):
        mark.update(line.encode() + b"\n")
    return mark.hexdigest()


def open_source(source: str | Path, *, discard_shards: bool = False) -> Source:
    """A folder that exists, else a hub id `owner/name`."""
    path = Path(source).expanduser()
    if path.is_dir():
        if discard_shards:
            raise CloverError(
                f"--discard-shards deletes downloads, and {path} is a folder of your own",
                "leave the option out",
            )
        return LocalSource.open(path)
    if path.exists():
        raise ModelError(f"{path} is a file; clover convert takes a checkpoint folder or a hub id")
    if not re.fullmatch(r"[\w][\w.-]*/[\w][\w.-]*", str(source)):
        raise ModelError(f"there is no folder {source}", "give a checkpoint folder or a hub id owner/name")
    from clover_local.convert.hub import HubSource

    return HubSource.open(str(source), discard=discard_shards)
