"""The package's version, read by the build and written into converted files."""

__version__ = "0.1.0"
