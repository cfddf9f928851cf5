"""Real engines under mixed load and faults for as long as it is told: `python -m tests.soak --minutes N`."""
