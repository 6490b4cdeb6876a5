"""The answer of ``check`` as JSON and as text."""
