"""The training scripts are importable as `demo` here; they are no part of the package."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
for folder in (ROOT / "scripts", ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
