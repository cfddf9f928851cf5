"""The only code that touches the operating system: runtime directory, endpoint, spawn, kill ladder, log ring."""

from synapse.host.managed import ManagedProcess, managed_process
from synapse.host.real import RealHost, python_worker

__all__ = ["ManagedProcess", "RealHost", "managed_process", "python_worker"]
