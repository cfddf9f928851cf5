"""The only code that touches the operating system: runtime directory, endpoint, spawn, kill ladder, log ring."""

from synapse.host.real import RealHost, python_worker

__all__ = ["RealHost", "python_worker"]
