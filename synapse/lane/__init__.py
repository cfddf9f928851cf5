"""A lane: the workers of one artifact with one configuration, as plain async calls."""

from __future__ import annotations

from synapse.lane.lane import Lane
from synapse.lane.life import Surroundings
from synapse.lane.profile import Generation, Profile
from synapse.lane.stream import Delta, GenerationStream

__all__ = ["Delta", "Generation", "GenerationStream", "Lane", "Profile", "Surroundings"]
