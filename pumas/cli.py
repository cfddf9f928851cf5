"""The `pumas` command. Every problem that a user can cause is one line on standard error with the remedy.

Exit status: 0 after a clean end, 1 for what went wrong while running (a taken port, no model loaded, a gateway that
does not answer), 2 for a wrong command line or configuration, 130 for Ctrl-C before there was anything to end.
Each command imports what it needs when it runs: a mistake is reported before an HTTP stack is loaded.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import NoReturn

import msgspec

from pumas import log
from pumas.config import (
    MAX_CONTEXT,
    MAX_PARALLEL,
    MIN_CONTEXT,
    Config,
    ConfigError,
    Model,
    UserError,
    check_config,
    http_config,
    read_config,
)
from pumas.http.config import HttpSetupError
from pumas.keys import read_api_key
from synapse.errors import SynapseError

DEFAULT_URL = "http://127.0.0.1:8080"
_URL_HELP = f"http://HOST:PORT, https://HOST:PORT or unix:PATH; default {DEFAULT_URL}. The key: PUMAS_API_KEY"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        if options.build_info:
            from pumas.build_info import build_info

            print(msgspec.json.format(msgspec.json.encode(build_info()), indent=2).decode())
            return 0
        if options.command is None:
            _parser().print_help()
            return 2
        status: int = options.run(options)
        return status
    except UserError as error:
        return _complain(error, error.exit_status)
    except HttpSetupError as error:
        taken = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
        return _complain(f"{error}; choose another with --port, or stop what listens there" if taken else error, 1)
    except SynapseError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return 130


def _complain(error: Exception | str, status: int) -> int:
    print(f"pumas: {log.escape(str(error))}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """A wrong command line is one line, too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"pumas: {log.escape(message)}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="pumas", description="Serve local models over a strict HTTP contract and OpenAI-compatible routes."
    )
    parser.add_argument("--version", action="version", version=f"pumas {version('pumas')}")
    parser.add_argument("--build-info", action="store_true", help="versions, contract and engine, as JSON")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve models")
    serve.add_argument("models", nargs="*", metavar="MODEL.gguf", help="model files")
    serve.add_argument("--name", metavar="ALIAS", help="the alias of the one model given (default: the file's stem)")
    serve.add_argument("--host", help="bind address (default 127.0.0.1; another one needs an API key)")
    serve.add_argument("--port", type=_port, metavar="N", help="TCP port (default 8080; 0: any free one)")
    serve.add_argument("--unix-socket", metavar="PATH", help="a Unix socket to listen on as well")
    serve.add_argument("--parallel", type=_parallel, metavar="N", help="sequences that share a worker (default 8)")
    serve.add_argument("--context", type=_context, metavar="N", help="tokens one sequence may hold")
    serve.add_argument("--threads", type=_threads, metavar="N", help="threads of all workers (default: all cores)")
    serve.add_argument("--config", metavar="pumas.toml", help="configuration file (docs/config.md)")
    serve.set_defaults(run=_serve)

    models = commands.add_parser("models", help="list what a running gateway serves")
    models.add_argument("--url", default=DEFAULT_URL, help=_URL_HELP)
    models.set_defaults(run=_models)

    probe = commands.add_parser("probe", help="try a quarantined or failed model again")
    probe.add_argument("alias", metavar="ALIAS")
    probe.add_argument("--profile", help="needed where the alias has several")
    probe.add_argument("--url", default=DEFAULT_URL, help=_URL_HELP)
    probe.set_defaults(run=_probe)

    tokenize = commands.add_parser(
        "tokenize", help="texts on standard input, one a line; the token ids that the engine would get, out"
    )
    tokenize.add_argument("model", metavar="MODEL.gguf")
    tokenize.add_argument("--json", action="store_true", help="each input line is one JSON string")
    tokenize.add_argument("--count", action="store_true", help="print the number of tokens instead of the ids")
    tokenize.add_argument("--no-bos", action="store_true", help="do not add the model's special tokens")
    tokenize.add_argument("--no-parse-special", action="store_true", help="special tokens' text stays text")
    tokenize.set_defaults(run=_tokenize)
    return parser


def _whole(low: int, high: int) -> Callable[[str], int]:
    """A type of argument: a whole number within bounds."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text[:20]) <= high):
            raise argparse.ArgumentTypeError(f"{text!r} is outside {low} to {high}")
        return int(text)

    return parse


_port = _whole(0, 65535)
_parallel = _whole(1, MAX_PARALLEL)
_context = _whole(MIN_CONTEXT, MAX_CONTEXT)
_threads = _whole(1, 4096)


def _serve(options: argparse.Namespace) -> int:
    config = _serve_config(options)
    from pumas.serving import run_gateway

    return run_gateway(config, read_api_key(config))


def _serve_config(options: argparse.Namespace) -> Config:
    """The file, and what the command line changes of it."""
    config = read_config(options.config) if options.config else Config()
    if options.name is not None and len(options.models) != 1:
        raise ConfigError("--name needs exactly one MODEL.gguf on the command line")
    extra = {key: getattr(options, key) for key in ("parallel", "context") if getattr(options, key) is not None}
    given = tuple(Model(path=path, name=options.name, **extra) for path in options.models)
    changed = {
        key: value
        for key, value in (("host", options.host), ("port", options.port), ("unix_socket", options.unix_socket))
        if value is not None
    }
    server = msgspec.structs.replace(config.server, **changed)
    config = msgspec.structs.replace(
        config, models=config.models + given, server=server, http=http_config(server, config.http)
    )
    if options.threads is not None:
        config = msgspec.structs.replace(
            config, synapse=msgspec.structs.replace(config.synapse, threads=options.threads)
        )
    if not config.models and not config.upstreams:
        raise ConfigError("nothing to serve: name a MODEL.gguf, or a --config with a [[model]]")
    check_config(config)
    return config


def _models(options: argparse.Namespace) -> int:
    from pumas.client import models_table

    print(models_table(options.url))
    return 0


def _probe(options: argparse.Namespace) -> int:
    from pumas.client import probe

    print(probe(options.url, options.alias, options.profile))
    return 0


def _tokenize(options: argparse.Namespace) -> int:
    from pumas.tokenizing import run_tokenize

    return run_tokenize(
        options.model,
        as_json=options.json,
        count=options.count,
        add_special=not options.no_bos,
        parse_special=not options.no_parse_special,
    )


if __name__ == "__main__":
    sys.exit(main())
