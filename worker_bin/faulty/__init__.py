"""A deterministic engine that speaks the whole protocol, with every misbehaviour as a switch: for tests and drills."""
