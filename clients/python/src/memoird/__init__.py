"""A client of memoird, the session daemon for chat bots.

    with memoird.Client() as client:
        client.append("telegram:4711", [memoird.user("Where is my parcel?")])
        window = client.build_context("telegram:4711", format=memoird.MessageFormat.ANTHROPIC)
"""

# Named twice, so that type checkers treat them as exported.
from . import errors as errors
from .client import AsyncClient as AsyncClient
from .client import Client as Client
from .client import Tls as Tls
from .errors import MemoirdError as MemoirdError
from .local import local as local
from .turns import assistant as assistant
from .turns import system as system
from .turns import tool_result as tool_result
from .turns import tool_use as tool_use
from .turns import user as user
from .types import *  # noqa: F403

__version__ = "0.1.0"
