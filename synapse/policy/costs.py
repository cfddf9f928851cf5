"""What units cost on one worker, learned from those that came back. Pure."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_TOKEN_MS = 5.0
"""A token of a batch, and of a prompt, before anything was measured: far above what is usual, so that the first unit's
deadline is generous."""
DEFAULT_STEP_MS = 20.0
MAX_STEPS = 64
"""A quantum never has more steps than this, however fast they are."""
_SMOOTH = 0.3


@dataclass
class Costs:
    """Moving averages in milliseconds; 0 while nothing was measured."""

    token_ms: float = 0.0
    step_ms: float = 0.0
    quantum_ms: float = 0.0

    def batch_took(self, tokens: int, seconds: float) -> None:
        if tokens > 0 and seconds > 0:
            self.token_ms = _average(self.token_ms, 1000 * seconds / tokens)

    def quantum_took(self, steps: int, elapsed_ms: float, *, prefill: bool = False) -> None:
        """As DECODED says it. `prefill`: prompts were evaluated too, so it tells nothing of a step's time."""
        if steps > 0 and elapsed_ms > 0:
            self.quantum_ms = _average(self.quantum_ms, elapsed_ms)
            if not prefill:
                self.step_ms = _average(self.step_ms, elapsed_ms / steps)

    def steps(self, target_ms: float) -> int:
        """How many steps come closest to a quantum of this length; at least one."""
        return max(1, min(MAX_STEPS, round(target_ms / (self.step_ms or DEFAULT_STEP_MS))))

    def batch_s(self, tokens: int) -> float:
        """Seconds that a batch of so many tokens should take."""
        return tokens * (self.token_ms or DEFAULT_TOKEN_MS) / 1000

    def quantum_s(self, target_ms: float) -> float:
        return max(target_ms, self.quantum_ms, 4 * (self.step_ms or DEFAULT_STEP_MS)) / 1000

    def answer_s(self, prompt: int, max_tokens: int) -> float:
        """A whole answer in one request."""
        return (prompt * DEFAULT_TOKEN_MS + max_tokens * (self.step_ms or DEFAULT_STEP_MS)) / 1000


def _average(old: float, new: float) -> float:
    return new if old == 0 else old + _SMOOTH * (new - old)


def answer_tokens(step_ms: float, deadline_s: float) -> int:
    """The longest answer that a worker without DECODE may be asked for (G4): half of its deadline, up to 64."""
    return max(1, min(64, int(500 * deadline_s / (step_ms or DEFAULT_STEP_MS))))
