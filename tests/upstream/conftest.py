"""The gateway that the tests of this folder share."""

from tests.upstream.gateway import upstreams

__all__ = ["upstreams"]
