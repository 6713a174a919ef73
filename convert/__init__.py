"""From a Hugging Face checkpoint to one quantized GGUF with block-diffusion metadata."""

import sys
from types import ModuleType
from typing import Any

from clover_local.convert.api import convert

__all__ = ["convert"]


class _Package(ModuleType):
    """Callable, since importing the package binds its name over the function `clover_local.convert`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return convert(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
