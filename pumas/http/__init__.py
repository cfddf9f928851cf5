"""The HTTP side's machinery: a serve loop that one client cannot hurt, its guard, bodies and event streams."""

from pumas.http.config import HttpConfig, HttpSetupError
from pumas.http.exchange import AsgiApp, ClientGone, Message, Receive, Scope, Send
from pumas.http.listen import Listening
from pumas.http.serve import serve

__all__ = [
    "AsgiApp",
    "ClientGone",
    "HttpConfig",
    "HttpSetupError",
    "Listening",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "serve",
]
