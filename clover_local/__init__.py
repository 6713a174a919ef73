"""clover-local: run block-diffusion language models on your own machine.

The names below are loaded when they are first used, so importing the package costs nothing.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clover_local.api import Model, load
    from clover_local.convert.api import convert
    from clover_local.decoding.settings import Settings
    from clover_local.errors import CloverError
    from clover_local.version import __version__

_CHECKOUT = Path(__file__).parents[1]
if (_CHECKOUT / "pyproject.toml").is_file():
    __path__.append(str(_CHECKOUT))  # not installed: convert, quant and tui lie beside this folder

__all__ = ["CloverError", "Model", "Settings", "__version__", "convert", "load"]

_HOMES = {
    "CloverError": "errors",
    "Model": "api",
    "Settings": "decoding.settings",
    "__version__": "version",
    "load": "api",
}


def __getattr__(name: str) -> Any:
    if name == "convert":
        return import_module("clover_local.convert")  # the package can be called: it is convert()
    if name in _HOMES:
        return getattr(import_module(f"clover_local.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'clover_local' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
