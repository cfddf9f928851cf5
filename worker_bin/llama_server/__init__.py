"""llama-server as the xllamacpp package carries it, on a Unix socket: for machines without one in PATH."""
