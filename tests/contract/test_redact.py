"""No credential leaves in a message, and looking for one takes linear time."""

from __future__ import annotations

import time

import pytest

from pumas.contract.errors import ContractError, encode_error
from pumas.contract.limits import MAX_MESSAGE_CHARACTERS
from pumas.contract.redact import REDACTED, redact

A = "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY"
HEX = "0123456789abcdef0123456789abcdef"
PLANTED = {
    "openai key": (f"Incorrect API key provided: sk-proj-{A}", A),
    "anthropic key": (f"invalid x-api-key sk-ant-api03-{A}", A),
    "stripe key": (f"key rk_live_{A} is restricted", A),
    "bearer header": (f"Authorization: Bearer {A}", A),
    "bearer alone": (f"upstream refused Bearer {A}, try again", A),
    "basic header": ('{"Authorization": "Basic dXNlcjpwYXNzd29yZA=="}', "dXNlcjpwYXNzd29yZA"),
    "basic alone": ("sent Basic dXNlcjpwYXNz to it", "dXNlcjpwYXNz"),
    "proxy header": (f"proxy-authorization: {A}", A),
    "cookie": (f"Cookie: session={A}; theme=dark", A),
    "password in url": ("cannot connect to http://user:hunter2@127.0.0.1:8081/v1", "hunter2"),
    "token in url": (f"redirected to https://{A}@example.org/x", A),
    "query parameter": (f"GET /v1/models?api_key={A}&limit=3 failed", A),
    "environment": (f"OPENAI_API_KEY={A} was not accepted", A),
    "argument": (f"llama-server --api-key={A} exited", A),
    "json member": (f'{{"client_secret": "{A}", "id": 1}}', A),
    "password": ("password: hunter2", "hunter2"),
    "quoted password": ("db_password='correct horse battery'", "horse"),
    "aws key id": ("credential AKIAIOSFODNN7EXAMPLE is unknown", "AKIAIOSFODNN7EXAMPLE"),
    "aws secret": (f"aws_secret_access_key = {A}/+x", A),
    "github token": (f"clone with ghp_{A} failed", A),
    "hugging face token": (f"401 for hf_{A}", A),
    "slack token": ("xoxb-123456789012-abcdefABCDEF is revoked", "abcdefABCDEF"),
    "slack hook": (f"POST https://hooks.slack.com/services/T00000000/B00000000/{A}", A),
    "google key": (f"key AIzaSyA{A} has no quota", A),
    "jwt": (f"token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{A} expired", A),
    "private key": (f"-----BEGIN RSA PRIVATE KEY-----\n{A}\n{A}\n-----END RSA PRIVATE KEY-----", A),
    "private key cut off": (f"-----BEGIN PRIVATE KEY-----\n{A}\n{A}", A),
    "telegram token": (f"bot 123456789:AA{A} blocked", A),
    "signature": (f"blob?se=2026&sig={A}%3D", A),
    "twilio": (f"account AC{HEX} suspended", HEX),
    "sendgrid": (f"SG.{A}.{A}", A),
    "name where a credential should be": (f"Authorization:\naws_secret_access_key = {A}/+x", A),
    "name of a name": (f"password: api_key: {A}", A),
}


@pytest.mark.parametrize("shape", PLANTED)
def test_a_planted_credential_does_not_leave(shape: str) -> None:
    message, secret = PLANTED[shape]
    assert secret in message
    for text in (redact(message), redact("before " + message + " behind"), redact("x" * 7000 + " " + message)):
        assert secret not in text
        assert REDACTED in text


def test_error_bodies_are_redacted() -> None:
    for message, secret in PLANTED.values():
        body = encode_error(ContractError("provider_failure", message, outcome="unknown"))
        assert secret.encode() not in body


@pytest.mark.parametrize(
    "message",
    [
        "input_tokens of item 3 is 600, over the limit of 512",
        "request does not match the contract: unknown field `token` at `$.options`; the nearest known is `top_p`",
        "key `a` is given twice in one object",
        "option `max_tokens` is 9999, outside the bound 1 to 2048 of chat_generation",
        "model `sha256:0123456789ab` is not served; served: `SmolLM2-135M-Instruct`, `all-MiniLM-L6-v2`",
        "cannot connect to http://127.0.0.1:8081/v1/chat/completions",
        "the bearer token is missing",
        "basic understanding of tokens: 512",
    ],
)
def test_what_is_no_credential_stays(message: str) -> None:
    assert redact(message) == message


def test_half_a_credential_at_the_cut_does_not_leave() -> None:
    for before in range(MAX_MESSAGE_CHARACTERS - 40, MAX_MESSAGE_CHARACTERS):
        assert "sk-" not in redact("x" * (before - 1) + f" sk-{A}")


def test_control_characters_and_direction_marks_are_escaped() -> None:
    assert redact("a\x1b[31mb\x00c\u202ed") == "a\\u001b[31mb\\u0000c\\u202ed"


HOSTILE = (
    "a", "a_", "a-b_", "eyJ", "eyJaaaaaaaaa.", "://", "a://b", "key=", "api_key=", "-----BEGIN PRIVATE KEY-----", "sk-",
    "Bearer ", "authorization: ", '"', "cookie:", "secret", "aa.", "0", "SG.aaaaaaaaaaaa.", "@", "=:", "\n", "ghp_",
)  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_is_linear(piece: str) -> None:
    """Fifty times the longest message. Linear it takes a tenth of a second, quadratic it takes minutes."""
    length = 50 * MAX_MESSAGE_CHARACTERS
    begin = time.process_time()
    redact((piece * length)[:length], limit=length)
    assert time.process_time() - begin < 30
