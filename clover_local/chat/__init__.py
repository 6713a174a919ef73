"""Conversations: history, prefix reuse and the engine in its own process."""
