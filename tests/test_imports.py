"""Imports point one way, and the command's help loads next to nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"clover_local": "clover_local", "convert": "clover_local.convert", "quant": "clover_local.quant",
           "tui": "clover_local.tui"}  # fmt: skip

# What each room may import besides itself; `*` is everything below the commands.
BASE = {"errors", "version"}
ENGINE = BASE | {"ggml", "model", "runtime"}
API = ENGINE | {"decoding", "text", "hub", "names", "api"}
MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "hub": BASE,
    "names": BASE | {"hub"},
    "ggml": BASE,
    "quant": BASE | {"ggml"},
    "convert": BASE | {"ggml", "quant", "hub"},
    "model": BASE | {"ggml"},
    "runtime": ENGINE,
    "text": BASE | {"ggml"},
    "decoding": BASE | {"model", "runtime"},
    "api": API,
    "chat": API,
    "data": set(),
    "bench": API,
    "tui": API | {"chat"},
    "serve": API | {"chat"},
    "commands": API | {"chat", "bench", "tui", "serve", "convert", "quant", "cli"},
    "cli": BASE | {"commands"},
    "__main__": {"cli"},
}


def modules() -> dict[str, Path]:
    """Every module of the product by its import name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *(p for p in parts if p != "__init__")))] = path
    return found


class _WithoutTypes(ast.NodeTransformer):
    """Drops what only a type checker reads: a screen may name the type of its application."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        guard = node.test
        return (
            None if isinstance(guard, ast.Name) and guard.id == "TYPE_CHECKING" else self.generic_visit(node)
        )


def imported(path: Path, *, types: bool = True) -> set[str]:
    """Names of the product's modules that a file imports, inside functions too, and for `types` as well."""
    names = set()
    tree: ast.AST = ast.parse(path.read_text())
    for node in ast.walk(tree if types else _WithoutTypes().visit(tree)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "clover_local"}


def room(name: str) -> str:
    return (*name.split("."), "")[1]


def test_imports_point_one_way() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, path in modules().items()
        if name != "clover_local"
        for other in sorted(imported(path))
        if room(other) != room(name) and room(other) not in MAY_IMPORT[room(name)]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_in_a_circle() -> None:
    known = modules()
    edges: dict[str, set[str]] = {}
    for name, path in known.items():
        others = imported(path, types=False)
        packages = {other.rpartition(".")[0] for other in others}
        edges[name] = (others | packages) & known.keys() - {"clover_local", name}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*way, name))
            done.add(name)

    for name in known:
        visit(name, ())


def test_nothing_of_the_product_needs_the_reference_data_or_test_helpers() -> None:
    for name, path in modules().items():
        text = path.read_text()
        assert "shared/" not in text and "import pytest" not in text, name


@pytest.mark.parametrize("line", [["--help"], ["--version"], ["run", "--help"], ["chat", "--help"]])
def test_help_loads_neither_numpy_nor_textual_nor_torch(line: list[str]) -> None:
    code = (
        "import sys; from clover_local.cli import main\n"
        f"try: main({line!r})\n"
        "except SystemExit: pass\n"
        "print([m for m in ('numpy', 'textual', 'torch', 'llama_cpp', 'huggingface_hub', 'rich') "
        "if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_importing_the_package_is_lazy_and_its_names_are_there() -> None:
    code = (
        "import sys, clover_local\n"
        "assert 'numpy' not in sys.modules\n"
        "print(sorted(n for n in clover_local.__all__ if getattr(clover_local, n) is None))\n"
        "print(callable(clover_local.convert), clover_local.load.__module__, clover_local.__version__)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    first, second = out.splitlines()
    assert first == "[]" and second.startswith("True clover_local.api ")


def test_help_is_quick() -> None:
    """Under 0.2 s of processor time, the interpreter's start included; wall time depends on who else runs."""
    code = (
        "import time; from clover_local.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(time.process_time())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    ]
    assert min(float(run.splitlines()[-1]) for run in runs) < 0.2
