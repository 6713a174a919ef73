"""The clover command."""
