"""The clients: one for threads, one for event loops. Create a client once and reuse it."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import pathlib
import random
import threading
import time
import urllib.parse
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio

from . import _misfit, types
from ._arguments import named
from ._calls import Answer, Asked, AsyncCalls, Call, SyncCalls
from .errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    InvalidSetting,
    MemoirdError,
    ResourceExhausted,
    Unavailable,
    error_of,
)

ADDR, KEY, CA = "http://127.0.0.1:7717", "MEMOIRD_KEY", "MEMOIRD_CA"
TIMEOUT, TIMEOUT_MAX = 30.0, 365 * 86400.0
# Process in which an event loop of this package made the first call. grpc.aio does not work in its
# forks.
_process_of_loops: int | None = None
# Seconds after which a client that has never reached a daemon gives up.
FIRST_CONTACT = 3.0
# Seconds before the first retry, if the daemon names none. Doubled with each retry, with random
# jitter.
FIRST_PAUSE, PAUSE_MAX = 0.05, 2.0
# Before 1.80, grpcio shares the wait handles of its event loops with a fork: a call there ends both
# processes.
_MAY_FORK_AFTER_LOOPS = tuple(int(part) for part in grpc.__version__.split(".")[:2]) >= (1, 80)
# Seconds that a fork waits for calls of other threads.
FORK_WAITS = 1.0
# The daemon rejects longer ids of sessions and subjects. Much longer metadata would end the
# connection.
PLACE_MAX = 256
_MESSAGE_BYTES_MAX = 256 << 20
_OPTIONS: list[tuple[str, Any]] = [
    # Windows may be larger than gRPC's default of 4 MiB.
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    # This package decides about retries.
    ("grpc.enable_retries", 0),
    # By default, gRPC waits up to two minutes before it reconnects to a daemon that was away.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Detects an unresponsive machine: while a call waits, pings check the connection. The system
    # would take a quarter of an hour. NAT and proxies drop idle connections silently, most of them
    # after a minute or more. gRPC closes a connection after 25 to 50 s without a call, and the next
    # call opens a new one.
    ("grpc.client_idle_timeout_ms", 25_000),
    # Also the time limit of a connection attempt, by default 20 s.
    ("grpc.min_reconnect_backoff_ms", int(FIRST_CONTACT * 1000)),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
]


@dataclass(slots=True, frozen=True)
class Tls:
    """TLS certificates, as PEM files."""

    ca: str | os.PathLike[str] | None = None
    """CA of the daemon's certificate. If None, the CAs that this machine trusts."""
    cert: str | os.PathLike[str] | None = None
    """This client's own certificate, if the daemon requires one."""
    cert_key: str | os.PathLike[str] | None = None
    """Private key of `cert`."""

    def credentials(self) -> grpc.ChannelCredentials:
        if bool(self.cert) != bool(self.cert_key):
            # Otherwise gRPC aborts the process.
            raise _not_set("tls", "takes cert and cert_key together (MEMOIRD_CERT and MEMOIRD_CERT_KEY)")

        def read(file: str | os.PathLike[str] | None) -> bytes | None:
            return pathlib.Path(file).read_bytes() if file else None

        return grpc.ssl_channel_credentials(read(self.ca), read(self.cert_key), read(self.cert))


class _Endpoint:
    """Address of the daemon and credentials of the caller."""

    def __init__(
        self, addr: str | None, key: str | None, tls: Tls | None, timeout: float, idempotent: bool
    ) -> None:
        addr = addr or os.environ.get("MEMOIRD_ADDR") or ADDR
        if not isinstance(addr, str):
            raise _not_set("addr", f"takes a text, not a {type(addr).__name__}")
        if tls is not None and not isinstance(tls, Tls):
            raise _not_set("tls", f"takes a memoird.Tls, not a {type(tls).__name__}")
        self.addr = addr
        scheme, found, rest = addr.partition("://")
        if not found:
            scheme, rest = ("unix", addr[5:]) if addr.startswith("unix:") else ("http", addr)
        host, self.target = ("", f"unix:{rest}") if scheme == "unix" else _host(rest, scheme == "https")
        if scheme not in ("http", "https", "unix") or not (rest and self.target):
            known = "http://HOST:PORT, https://HOST:PORT or unix:PATH"
            raise _not_set("addr", f"{addr!r} is no address: {known}")
        if tls is None and scheme == "https":
            tls = Tls(
                ca=os.environ.get(CA),
                cert=os.environ.get("MEMOIRD_CERT"),
                cert_key=os.environ.get("MEMOIRD_CERT_KEY"),
            )
        self.credentials = tls.credentials() if tls else None
        self.options = [*_OPTIONS]
        if scheme == "unix":
            # gRPC's default is the path of the socket, which servers reject as a host.
            self.options.append(("grpc.default_authority", "localhost"))
        elif _is_this_machine(host):
            # Otherwise gRPC uses the environment's proxy, which cannot reach this machine.
            self.options.append(("grpc.enable_http_proxy", 0))
        key = os.environ.get(KEY) if key is None else key
        if key and not (isinstance(key, str) and key.isascii() and key.isprintable()):
            # The message must not contain the key.
            raise _not_set("key", "takes a text of visible ASCII characters; a file's key has no line's end")
        # The daemon refuses replies over 4 MiB unless a call asks for more.
        self.metadata: tuple[tuple[str, str], ...] = (("memoird-max-reply-bytes", str(_MESSAGE_BYTES_MAX)),)
        if key:
            self.metadata = (("authorization", f"Bearer {key}"), *self.metadata)
        self.timeout, self.idempotent = _seconds(timeout), idempotent
        self.was_reached = False

    def metadata_for(self, call: Call[Any, Any], request: Any) -> tuple[tuple[str, str], ...]:
        place = _place(call, request)
        if not place or len(place) > PLACE_MAX:
            return self.metadata
        # Load balancers route all calls of a session to the same daemon by it.
        return (*self.metadata, ("memoird-session", urllib.parse.quote(place, safe="")))

    def written(self, call: Call[Any, Any], request: Any) -> Any:
        """Returns the message to send, with generated idempotency keys where they are needed to retry it."""
        asked = _written(call, request)
        for keyed in _keyed(asked) if self.idempotent else ():
            # The request itself is unchanged: the caller may send it again as another call.
            keyed.idempotency_key = keyed.idempotency_key or os.urandom(16).hex()
        return asked


def _not_set(field: str, problem: str) -> InvalidSetting:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    return InvalidSetting(f"{field} {problem}", code=invalid, facts={"field": field})


def _host(rest: str, is_tls: bool) -> tuple[str, str]:
    """Returns the host of an address, and gRPC's target for it. The host is empty if there is none."""
    try:
        parts = urllib.parse.urlsplit(f"//{rest.rstrip('/')}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "", ""
    if not host or parts.netloc != rest.rstrip("/") or "@" in rest:
        return "", ""
    # gRPC's default is the port of https for both.
    return host, parts.netloc if port is not None else f"{parts.netloc.rstrip(':')}:{443 if is_tls else 80}"


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _place(call: Call[Any, Any], request: Any) -> str:
    """Returns the session id of a request, or for memories the subject if it names one."""
    session = getattr(request, "session_id", "")
    filter = getattr(request, "filter", None)
    subject = getattr(request, "subject", "") or getattr(filter, "subject", "")
    subject = subject or next(iter(getattr(request, "subjects", ())), "")
    is_memory = call.path.startswith("/memoird.v1.MemoryService/")
    return (subject or session) if is_memory else (session or subject)


def _seconds(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or math.isnan(timeout):
        raise _not_set("timeout", f"takes seconds as a number, not {timeout!r}")
    # With a longer timeout, gRPC ends a call at once.
    return min(max(timeout, 0.001), TIMEOUT_MAX)


def _written(call: Call[Any, Any], request: Any) -> Any:
    """Encodes a request. Raises if a field has an invalid value."""
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    try:
        return call.write(request)
    except Exception as problem:
        try:
            _misfit.look(call.request.DESCRIPTOR, request)
        except _misfit.Misfit as misfit:
            raise InvalidArgument(str(misfit), code=invalid, facts={"field": misfit.place}) from None
        raise InvalidArgument(f"{call.name}: {problem}", code=invalid) from problem


# Requests that need an idempotency key to be retried.
_KEYED = {
    "AppendRequest",
    "CopySessionRequest",
    "EndSessionRequest",
    "UpdateSessionRequest",
    "PutDocumentRequest",
    "ResetSessionRequest",
    "RewindSessionRequest",
    "UpdateTurnRequest",
}


def _keyed(asked: Any) -> list[Any]:
    """Returns the parts of a message that need an idempotency key to be retried."""
    name = asked.DESCRIPTOR.name
    if name in _KEYED:
        return [asked]
    if name == "BuildContextRequest" and asked.HasField("append"):
        return [asked.append]
    if name == "BatchDocumentsRequest":
        return [it.put for it in asked.operations if it.HasField("put")]
    return []


class _Forks:
    """Lets this process fork only between calls. After a fork during a call, grpcio hangs or crashes."""

    def __init__(self) -> None:
        self._calls = self._streams = 0
        self._is_amid_calls = self._is_after_loops = False
        self._unlock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
            )

    def _unlock(self) -> None:
        # Reentrant: the forking thread holds it, and a signal handler may fork during a call of its
        # own thread.
        self._changed = threading.Condition(threading.RLock())
        self._is_forking = False

    def __enter__(self) -> None:
        """Begins a call. Waits while a fork is pending."""
        with self._changed:
            while self._is_forking:
                self._changed.wait()
            self._look()
            self._calls += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._calls -= 1
            if self._is_forking:
                self._changed.notify_all()

    async def over(self) -> None:
        """Keeps an event loop running while a fork waits for its calls."""
        while self._is_forking:
            await asyncio.sleep(0.001)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Marks a stream as active. Forks do not wait then, because a stream may never end."""
        with self._changed:
            self._look()
            self._streams += 1
        try:
            yield
        finally:
            with self._changed:
                self._streams -= 1

    def _before(self) -> None:
        self._changed.acquire()
        self._is_forking = True
        if not self._streams:
            self._changed.wait_for(lambda: not self._calls, FORK_WAITS)

    def _in_parent(self) -> None:
        self._is_forking = False
        self._changed.notify_all()
        self._changed.release()

    def _in_child(self) -> None:
        self._is_amid_calls |= bool(self._calls or self._streams)
        self._is_after_loops = _process_of_loops is not None
        self._calls = self._streams = 0
        self._unlock()

    def _look(self) -> None:
        if self._is_after_loops and not _MAY_FORK_AFTER_LOOPS:
            raise MemoirdError(
                f"grpcio {grpc.__version__} does not work in a process that was forked after an event loop "
                "called: both would crash. Update it to 1.80 or newer, fork before the first call, or start "
                "processes by spawn",
                code=grpc.StatusCode.FAILED_PRECONDITION,
            )
        if self._is_amid_calls:
            raise MemoirdError(
                "grpcio does not work in a process that was forked amid a call of another thread: it would "
                "hang. Fork before the first call or between calls, or start processes by spawn",
                code=grpc.StatusCode.FAILED_PRECONDITION,
            )


_FORKS = _Forks()


# Status codes of gRPC or a load balancer if no daemon responds.
_WITHOUT_DAEMON = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
)


class _Tries:
    """Decides whether and when a failed call is retried."""

    def __init__(
        self, call: Call[Any, Any], asked: Any, endpoint: _Endpoint, begun: float, ends: float
    ) -> None:
        self._call, self._endpoint = call, endpoint
        keyed = _keyed(asked)
        unsafe = any(not part.idempotency_key for part in keyed)
        # A window's append is done before the window is rejected.
        self._is_undone = call.name != "BuildContext" or not keyed
        unsafe |= call.name == "Remember" and not asked.idempotency_key
        # With an expected version, the repetition of a completed deletion fails.
        unsafe |= _is_conditional(asked)
        self._repeatable = call.repeatable and not unsafe
        self._gives_up, self._ends = begun + FIRST_CONTACT, ends
        self._pause = FIRST_PAUSE

    def left(self) -> float:
        """Seconds until the time limit."""
        return max(self._ends - time.monotonic(), 0.001)

    def pause_after(self, failure: Any) -> float:
        """Returns the seconds to wait before the next try. Raises if the call must not be retried."""
        error = error_of(failure, self._call.name)
        endpoint = self._endpoint
        endpoint.was_reached |= bool(error.reason) or error.code not in _WITHOUT_DAEMON
        left = self.left()
        if not endpoint.was_reached and isinstance(error, Unavailable):
            left = min(left, self._gives_up - time.monotonic())
            error = Unavailable(
                f"no memoird daemon answers at {endpoint.addr}: start one with `memoird serve`, or set "
                f"MEMOIRD_ADDR or addr to its address ({error})",
                code=error.code,
                retry_after=error.retry_after,
            )
        pause = error.retry_after
        # Retry errors of the daemon itself only if it returns a retry delay.
        if pause is None and isinstance(error, Unavailable) and error.reason in ("", "TRANSPORT"):
            pause = self._pause * random.uniform(0.5, 1.5)
            self._pause = min(self._pause * 2, PAUSE_MAX)
        # A call rejected for lack of room did nothing. Other failed calls may be in progress.
        is_undone = self._is_undone and isinstance(error, ResourceExhausted)
        is_safe = self._repeatable or is_undone
        hopeless = isinstance(error, (Conflict, DeadlineExceeded))
        if pause is None or hopeless or not is_safe or pause >= left:
            raise error from None
        return pause


def _is_conditional(asked: Any) -> bool:
    """Whether a message deletes a document with an expected version."""
    name = asked.DESCRIPTOR.name
    if name == "BatchDocumentsRequest":
        return any(it.HasField("delete") and _is_conditional(it.delete) for it in asked.operations)
    return name == "DeleteDocumentRequest" and asked.HasField("expected_version")


class Client(SyncCalls):
    """A client for threads. Thread-safe.

    `addr` is `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`, by default `MEMOIRD_ADDR` or
    the daemon on this machine. `key` is the tenant's API key, by default `MEMOIRD_KEY`. `timeout`
    is the time limit of a call in seconds, including retries. A client that has never reached a
    daemon gives up after 3 s. With `idempotent`, each change of a session and each put of a
    document has a generated idempotency key, and is retried if its response is lost.
    """

    def __init__(
        self,
        addr: str | None = None,
        *,
        key: str | None = None,
        tls: Tls | None = None,
        timeout: float = TIMEOUT,
        idempotent: bool = True,
    ) -> None:
        self._connect(_Endpoint(addr, key, tls, timeout, idempotent))

    def _connect(self, endpoint: _Endpoint) -> None:
        self._endpoint = endpoint
        target, credentials = endpoint.target, endpoint.credentials
        if credentials is None:
            self._channel = grpc.insecure_channel(target, endpoint.options)
        else:
            self._channel = grpc.secure_channel(target, credentials, endpoint.options)
        self._methods: dict[str, Any] = {}
        self._is_closed = False

    @property
    def addr(self) -> str:
        """Address of the daemon."""
        return self._endpoint.addr

    def for_event_loops(self) -> AsyncClient:
        """Returns a client of the same daemon and tenant for event loops."""
        other = AsyncClient.__new__(AsyncClient)
        other._connect(self._endpoint)
        return other

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels calls in progress and closes the connection."""
        self._is_closed = True
        self._channel.close()

    def _look_whether_closed(self) -> None:
        if self._is_closed:
            raise _closed() from None

    def _method(self, call: Call[Any, Any]) -> Any:
        method = self._methods.get(call.path)
        if method is None:
            method = self._channel.unary_unary(
                call.path, call.request.SerializeToString, call.response.FromString
            )
            self._methods[call.path] = method
        return method

    def _call(self, call: Call[Asked, Answer], request: Asked, timeout: float | None) -> Answer:
        endpoint = self._endpoint
        asked = endpoint.written(call, request)
        left = endpoint.timeout if timeout is None else _seconds(timeout)
        begun = time.monotonic()
        ends, tries = begun + left, None
        metadata = endpoint.metadata_for(call, request)
        while True:
            try:
                with _FORKS:
                    message = self._method(call)(asked, timeout=left, metadata=metadata)
            except ValueError as closed:
                raise _closed() from closed
            except grpc.RpcError as failure:
                self._look_whether_closed()
                tries = tries or _Tries(call, asked, endpoint, begun, ends)
                time.sleep(tries.pause_after(failure))
                left = tries.left()
            else:
                endpoint.was_reached = True
                return call.read(message)  # type: ignore[no-any-return]

    def _stream(
        self, call: Call[Asked, Answer], request: Asked, timeout: float | None
    ) -> Iterator[Answer]:
        method = self._channel.unary_stream(
            call.path, call.request.SerializeToString, call.response.FromString
        )
        asked = _written(call, request)
        ends = None if timeout is None else _seconds(timeout)
        try:
            answers = method(asked, timeout=ends, metadata=self._endpoint.metadata)
        except ValueError as closed:
            raise _closed() from closed
        return self._read(call, answers)

    def _read(self, call: Call[Asked, Answer], answers: Any) -> Iterator[Answer]:
        try:
            with _FORKS.stream():
                for answer in answers:
                    yield call.read(answer)
        except grpc.RpcError as failure:
            self._look_whether_closed()
            raise error_of(failure, call.name) from None
        finally:
            answers.cancel()


def _closed() -> Cancelled:
    return Cancelled("the client is closed: make another one", code=grpc.StatusCode.CANCELLED)


def _refuse_forked() -> None:
    global _process_of_loops
    process = os.getpid()
    if _process_of_loops is None:
        _process_of_loops = process
    if _process_of_loops != process:
        raise MemoirdError(
            "grpc.aio does not work in a process that was forked after its first call: it would hang. "
            "Make the first call after the fork, start processes by spawn, or use memoird.Client",
            code=grpc.StatusCode.FAILED_PRECONDITION,
        )


class AsyncClient(AsyncCalls):
    """A client for event loops, with one connection per loop. See `Client` for the arguments."""

    def __init__(
        self,
        addr: str | None = None,
        *,
        key: str | None = None,
        tls: Tls | None = None,
        timeout: float = TIMEOUT,
        idempotent: bool = True,
    ) -> None:
        self._connect(_Endpoint(addr, key, tls, timeout, idempotent))

    def _connect(self, endpoint: _Endpoint) -> None:
        self._endpoint = endpoint
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    @property
    def addr(self) -> str:
        """Address of the daemon."""
        return self._endpoint.addr

    def for_threads(self) -> Client:
        """Returns a client of the same daemon and tenant for threads."""
        other = Client.__new__(Client)
        other._connect(self._endpoint)
        return other

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels calls in progress and closes the connection of this loop."""
        with self._lock:
            methods = self._loops.pop(asyncio.get_running_loop(), None)
        if methods:
            await methods[""].close()

    def _methods(self) -> dict[str, Any]:
        _refuse_forked()
        loop = asyncio.get_running_loop()
        methods = self._loops.get(loop)
        if methods is None:
            target, credentials = self._endpoint.target, self._endpoint.credentials
            options = self._endpoint.options
            if credentials is None:
                channel = grpc.aio.insecure_channel(target, options)
            else:
                channel = grpc.aio.secure_channel(target, credentials, options)
            methods = {"": channel}
            with self._lock:
                # A channel references its loop, so a closed loop would never be freed.
                for ended in [it for it in self._loops if it.is_closed()]:
                    del self._loops[ended]
                self._loops[loop] = methods
        return methods

    def _look_whether_closed(self, methods: dict[str, Any]) -> None:
        """Raises if `close` canceled a call, and not the caller."""
        # `cancelling` was added in Python 3.11.
        cancelling = getattr(asyncio.current_task(), "cancelling", int)
        if not cancelling() and self._loops.get(asyncio.get_running_loop()) is not methods:
            raise _closed() from None

    async def _call(
        self, call: Call[Asked, Answer], request: Asked, timeout: float | None
    ) -> Answer:
        endpoint = self._endpoint
        asked = endpoint.written(call, request)
        left = endpoint.timeout if timeout is None else _seconds(timeout)
        begun = time.monotonic()
        ends, tries = begun + left, None
        metadata = endpoint.metadata_for(call, request)
        methods = self._methods()
        method = methods.get(call.path)
        if method is None:
            method = methods[call.path] = methods[""].unary_unary(
                call.path, call.request.SerializeToString, call.response.FromString
            )
        while True:
            try:
                await _FORKS.over()
                with _FORKS:
                    message = await method(asked, timeout=left, metadata=metadata)
                endpoint.was_reached = True
                return call.read(message)  # type: ignore[no-any-return]
            except grpc.RpcError as failure:
                tries = tries or _Tries(call, asked, endpoint, begun, ends)
                await asyncio.sleep(tries.pause_after(failure))
                left = tries.left()
            except (asyncio.CancelledError, grpc.aio.UsageError):
                self._look_whether_closed(methods)
                raise

    def _stream(
        self, call: Call[Asked, Answer], request: Asked, timeout: float | None
    ) -> AsyncIterator[Answer]:
        asked = _written(call, request)
        methods = self._methods()
        method = methods[""].unary_stream(
            call.path, call.request.SerializeToString, call.response.FromString
        )
        ends = None if timeout is None else _seconds(timeout)
        answers = method(asked, timeout=ends, metadata=self._endpoint.metadata)
        stream = self._read(call, answers, methods)
        # A generator that is never started would not cancel the call.
        weakref.finalize(stream, answers.cancel).atexit = False
        return stream

    async def _read(
        self, call: Call[Asked, Answer], answers: Any, methods: dict[str, Any]
    ) -> AsyncIterator[Answer]:
        try:
            with _FORKS.stream():
                async for answer in answers:
                    yield call.read(answer)
        except grpc.RpcError as failure:
            raise error_of(failure, call.name) from None
        except asyncio.CancelledError:
            self._look_whether_closed(methods)
            raise
        finally:
            answers.cancel()


def _name_wrong_arguments() -> None:
    for calls in (SyncCalls, AsyncCalls):
        for name, method in list(vars(calls).items()):
            if not name.startswith("_"):
                setattr(calls, name, named(method))
    for kind in (Client, AsyncClient, *(getattr(types, name) for name in types.__all__)):
        if "__init__" in vars(kind):
            kind.__init__ = named(kind.__init__)  # type: ignore[misc]


_name_wrong_arguments()
Kind = TypeVar("Kind", Client, AsyncClient)
_ENVIRONMENT = ("MEMOIRD_ADDR", KEY, CA, "MEMOIRD_CERT", "MEMOIRD_CERT_KEY")
_SHARED: dict[tuple[object, ...], Any] = {}
_SHARED_LOCK = threading.Lock()


def shared(kind: type[Kind]) -> Kind:
    """Returns the client configured by the environment, shared by all callers. Never closed."""
    name = (kind, *(os.environ.get(variable) for variable in _ENVIRONMENT))
    with _SHARED_LOCK:
        if name not in _SHARED:
            _SHARED[name] = kind()
        return _SHARED[name]  # type: ignore[no-any-return]


__all__ = ["AsyncClient", "Client", "MemoirdError", "Tls", "shared"]
