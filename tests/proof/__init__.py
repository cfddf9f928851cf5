"""The full figures of docs/PROMISES.md: `python -m tests.proof`."""
