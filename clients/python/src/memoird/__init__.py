"""A client of memoird, the session daemon for chat bots.

    with memoird.Client() as client:
        client.append("telegram:4711", [memoird.user("Where is my parcel?")])
        window = client.get_context("telegram:4711", format=memoird.MessageFormat.ANTHROPIC)
"""

from . import errors
from .client import AsyncClient, Client, Tls
from .errors import MemoirdError
from .local import local
from .turns import assistant, system, tool_result, tool_use, user
from .types import *  # noqa: F403

__version__ = "0.1.0"
