"""`python -m worker_bin.llama_server --model FILE --host PATH.sock ...`: a llama-server while the parent lives.

The few arguments are those of llama-server itself, so that the program in PATH and this one are started alike. It ends
with the guard above it (see worker_bin.guard), or at SIGTERM: at once, in mid-request too.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence

import xllamacpp

KV_TYPES = {"f16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0"}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="worker_bin.llama_server", description=__doc__)
    made.add_argument("--model", required=True)
    made.add_argument("--host", required=True, help="a Unix socket's path, ending in .sock, or an address")
    made.add_argument("--port", type=int, help="with an address; default: a free one, which is printed")
    made.add_argument("--alias")
    made.add_argument("--mmproj")
    made.add_argument("--ctx-size", type=int, default=0)
    made.add_argument("--parallel", type=int, default=1)
    made.add_argument("--threads", type=int, default=0)
    made.add_argument("--batch-size", type=int, default=0)
    made.add_argument("--ubatch-size", type=int, default=0)
    made.add_argument("--cache-type-k", choices=sorted(KV_TYPES), default="f16")
    made.add_argument("--cache-type-v", choices=sorted(KV_TYPES), default="f16")
    made.add_argument("--embeddings", action="store_true")
    made.add_argument("--reranking", action="store_true")
    return made


def params(arguments: argparse.Namespace) -> xllamacpp.CommonParams:
    """The arguments as the package takes them."""
    made = xllamacpp.CommonParams()
    made.model.path = arguments.model
    made.hostnames = [arguments.host]
    if arguments.port is not None:
        made.port = arguments.port
    made.n_gpu_layers = 0
    made.fit_params = False
    made.n_ctx = arguments.ctx_size
    made.n_parallel = arguments.parallel
    if arguments.alias:
        made.model_alias = {arguments.alias}
    if arguments.mmproj:
        made.mmproj.path = arguments.mmproj
    if arguments.threads:
        made.cpuparams.n_threads = made.cpuparams_batch.n_threads = arguments.threads
    if arguments.batch_size:
        made.n_batch = arguments.batch_size
    if arguments.ubatch_size:
        made.n_ubatch = arguments.ubatch_size
    made.cache_type_k = getattr(xllamacpp.ggml_type, KV_TYPES[arguments.cache_type_k])
    made.cache_type_v = getattr(xllamacpp.ggml_type, KV_TYPES[arguments.cache_type_v])
    if arguments.embeddings or arguments.reranking:
        made.embedding = True
    if arguments.reranking:
        made.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until a signal ends the process."""
    server = xllamacpp.Server(params(parser().parse_args(argv)))
    print(f"llama-server (xllamacpp {xllamacpp.__version__}) on {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
