"""What the person who starts the gateway is told once everything is settled: what is served, and lines that work.

The lines are for a shell, as they are printed: with the key and the profile where they are needed, and to an address
that can be connected to.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pumas.config import API_KEY_VARIABLE, Config
from pumas.contract.descriptors import Available, ServedModel

_EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat_generation": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
            "temperature": 0,
        },
    ),
    "text_embedding": ("/v1/embeddings", {"input": ["a first text", "a second one"], "dimensions": 8}),
    "rerank": ("/v1/rerank", {"query": "capital of France", "documents": ["Paris", "a banana"]}),
}


def announcement(urls: Sequence[str], models: Sequence[ServedModel], config: Config, *, keyed: bool) -> list[str]:
    """The lines, the last of them `ready on URL`.

    Args:
        urls: where it listens.
        keyed: an API key is needed.
    """
    profiles = Counter(model.model for model in models)
    reached = [_reachable(url) for url in urls]
    key = _key_in_shell(config) if keyed else None
    lines = []
    for model in models:
        what = ", ".join(_available(model)) or model.detail.get("error", "unavailable")
        if model.load_state == "quarantined":
            what += f"; to try again: {_probe(model, reached[0], key, profiles[model.model] > 1)}"
        lines.append(f"  {model.model}  {model.profile}  {model.load_state}  {what}")
    lines += [f"  {line}" for line in _examples(reached[0], models, profiles, key)]
    down = [_label(model) for model in models if model.load_state in ("failed", "quarantined")]
    if down:
        lines.append(f"warning: {len(down)} of {len(models)} cannot be served: {', '.join(down)}")
    if config.server.tcp and config.server.host in ("0.0.0.0", "::"):
        lines.append("listening on every address of this machine")
    return lines + [f"ready on {url}" for url in reached]


def label(alias: str, profile: str) -> str:
    """How a served (alias, profile) is called in lines for people."""
    return alias if profile == "default" else f"{alias} ({profile})"


def command() -> str:
    """What runs this program in the user's shell."""
    if shutil.which("pumas"):
        return "pumas"
    called = Path(sys.argv[0])
    return shlex.quote(str(called)) if called.name == "pumas" else f"{shlex.quote(sys.executable)} -m pumas"


def _label(model: ServedModel) -> str:
    return label(model.model, model.profile)


def _available(model: ServedModel) -> list[str]:
    return [c.capability for c in model.capabilities if c.availability == Available()]


def _reachable(url: str) -> str:
    """An address that clients on this machine can use, for one that stands for all of them."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _key_in_shell(config: Config) -> str:
    """The API key as a shell finds it; never the key itself."""
    file = config.server.api_key_file
    return f"${API_KEY_VARIABLE}" if file is None else f"$(cat {shlex.quote(file)})"


def _probe(model: ServedModel, url: str, key: str | None, named: bool) -> str:
    before = f'{API_KEY_VARIABLE}="{key}" ' if key is not None and key.startswith("$(") else ""
    profile = f" --profile {shlex.quote(model.profile)}" if named else ""
    return f"{before}{command()} probe {shlex.quote(model.model)}{profile} --url {shlex.quote(url)}"


def _examples(url: str, models: Sequence[ServedModel], profiles: Counter[str], key: str | None) -> list[str]:
    """One for each kind of model, and the list."""
    curl = f"curl {url}"
    if url.startswith("unix:"):
        curl = f"curl --unix-socket {shlex.quote(url.removeprefix('unix:'))} http://localhost"
    behind = "" if key is None else f' -H "Authorization: Bearer {key}"'
    lines = []
    asked = set[str]()
    for model in models:
        for capability, (route, body) in _EXAMPLES.items():
            if capability in _available(model) and capability not in asked:
                asked.add(capability)
                whom = {"model": model.model} | ({"profile": model.profile} if profiles[model.model] > 1 else {})
                data = shlex.quote(msgspec.json.encode(whom | body).decode())
                lines.append(f"{curl}{route}{behind} -H 'Content-Type: application/json' -d {data}")
    return [*lines, f"{curl}/v1/served-models{behind}"]
