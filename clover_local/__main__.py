"""`python -m clover_local` is the clover command."""

from clover_local.cli import entry

entry()
