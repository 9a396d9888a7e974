"""Draft heads, one a file; `base` is their contract."""
