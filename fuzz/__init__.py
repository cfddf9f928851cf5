"""A file for each parser of untrusted bytes, each with one invariant; `python -m fuzz` runs them (docs/fuzzing.md)."""
