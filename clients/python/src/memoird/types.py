"""Requests and responses: a dataclass for each message of the contract.

Generated from the contract by generate.py."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

Json = Any
"""A JSON text, or a value to encode."""
Bytes = bytes


class Open(IntEnum):
    """An open enumeration: newer daemons may send further values."""

    @classmethod
    def _missing_(cls, value: object) -> Open | None:
        if not isinstance(value, int):
            return None
        member = int.__new__(cls, value)
        member._name_, member._value_ = f"UNKNOWN_{value}", value
        return cls._value2member_map_.setdefault(value, member)  # type: ignore


def _parsed(text: Json) -> Any:
    return (json.loads(text) if text else None) if isinstance(text, str) else text

__all__ = [
    "AppendRequest",
    "AppendResponse",
    "BatchDocumentsRequest",
    "BatchDocumentsResponse",
    "BreakerState",
    "Budget",
    "BuildContextRequest",
    "BuildContextResponse",
    "CommitExtractionRequest",
    "CommitExtractionResponse",
    "CompactSessionRequest",
    "CompactSessionResponse",
    "CompactionFailed",
    "CompactionInfo",
    "CompactionTrigger",
    "CompactionUndone",
    "ConflictDifference",
    "ContextReport",
    "CopySessionRequest",
    "CopySessionResponse",
    "DeleteDocumentRequest",
    "DeleteDocumentResponse",
    "DeleteDocumentsRequest",
    "DeleteDocumentsResponse",
    "Document",
    "DocumentOperation",
    "DocumentResult",
    "EndReason",
    "EndSessionRequest",
    "EndSessionResponse",
    "EraseSessionRequest",
    "EraseSessionResponse",
    "EraseSubjectRequest",
    "EraseSubjectResponse",
    "ErasedCounts",
    "Erasure",
    "Event",
    "ExtractedMemory",
    "ExtractionFailed",
    "FactRejection",
    "FactsLearned",
    "ForgetRequest",
    "ForgetResponse",
    "GetDocumentRequest",
    "GetDocumentResponse",
    "GetErasureRequest",
    "GetErasureResponse",
    "GetHistoryRequest",
    "GetHistoryResponse",
    "GetManifestRequest",
    "GetManifestResponse",
    "GetMemoryRequest",
    "GetMemoryResponse",
    "GetMemoryStatsRequest",
    "GetMemoryStatsResponse",
    "GetSessionRequest",
    "GetSessionResponse",
    "HeadTail",
    "HistoryScope",
    "HookDelivered",
    "HookFailed",
    "ImportMemoriesRequest",
    "ImportMemoriesResponse",
    "LearnSessionRequest",
    "LearnSessionResponse",
    "LearnedFact",
    "LeaseExtractionRequest",
    "LeaseExtractionResponse",
    "ListConflictsRequest",
    "ListConflictsResponse",
    "ListDocumentsRequest",
    "ListDocumentsResponse",
    "ListMemoriesRequest",
    "ListMemoriesResponse",
    "ListNamespacesRequest",
    "ListNamespacesResponse",
    "ListSessionsRequest",
    "ListSessionsResponse",
    "ListSubjectsRequest",
    "ListSubjectsResponse",
    "Media",
    "Memory",
    "MemoryConflict",
    "MemoryFilter",
    "MemoryKind",
    "MemoryOrigin",
    "MemorySource",
    "MessageFormat",
    "ModelUsage",
    "Namespace",
    "NearDuplicate",
    "NextCut",
    "Omission",
    "OmissionReason",
    "Part",
    "Polarity",
    "PutDocumentRequest",
    "PutDocumentResponse",
    "RecallHit",
    "RecallMode",
    "RecallRequest",
    "RecallResponse",
    "RememberOutcome",
    "RememberRequest",
    "RememberResponse",
    "ResetSessionRequest",
    "ResetSessionResponse",
    "ResolveRecallToolRequest",
    "ResolveRecallToolResponse",
    "RewindSessionRequest",
    "RewindSessionResponse",
    "Role",
    "Salience",
    "ScoreParts",
    "SearchTranscriptsRequest",
    "SearchTranscriptsResponse",
    "SessionCompacted",
    "SessionCreated",
    "SessionEnded",
    "SessionErased",
    "SessionInfo",
    "SessionOrder",
    "SessionRewound",
    "SessionState",
    "SlidingWindow",
    "SubjectMemories",
    "SummaryInfo",
    "SummaryMaker",
    "Thinking",
    "TokenBudget",
    "TokensByBlock",
    "ToolResult",
    "ToolUse",
    "TranscriptHit",
    "Turn",
    "TurnUpdated",
    "TurnsAppended",
    "UndoCompactionRequest",
    "UndoCompactionResponse",
    "UpdateMemoryRequest",
    "UpdateMemoryResponse",
    "UpdateSessionRequest",
    "UpdateSessionResponse",
    "UpdateTurnRequest",
    "UpdateTurnResponse",
    "Visibility",
    "WatchEventsRequest",
    "WatchEventsResponse",
    "WindowPolicy",
]


class Role(Open):
    """Author of a turn."""

    UNSPECIFIED = 0
    """Not a role. A turn with it fails with INVALID_ARGUMENT."""
    USER = 1
    """The person or program that talks to the bot."""
    ASSISTANT = 2
    """The model."""
    TOOL = 3
    """A tool called by the model."""
    SYSTEM = 4
    """Instructions by the bot's author."""


class MessageFormat(Open):
    """Format of a provider's message array."""

    UNSPECIFIED = 0
    """No format. Valid only without `messages_json`."""
    OPENAI = 1
    """OpenAI chat completions: the `messages` array."""
    OPENAI_RESPONSES = 2
    """OpenAI responses: the `input` item array."""
    ANTHROPIC = 3
    """Anthropic messages: the `messages` array."""


class EndReason(Open):
    """Why a generation ended."""

    UNSPECIFIED = 0
    """The generation has not ended."""
    EXPIRED = 1
    """It was not touched for its TTL."""
    EVICTED = 2
    """The number of sessions reached a cap, and this one was idle the longest."""
    ENDED = 3
    """`EndSession` or an erasure ended it."""
    RESET = 4
    """`ResetSession` or a copy to the same session id replaced it."""
    SHUTDOWN = 5
    """The daemon stopped and has no journal (durability `off`)."""


class MemoryKind(Open):
    """What a memory is about."""

    UNSPECIFIED = 0
    """Not a kind. Rejected."""
    USER = 1
    """Who the subject is: role, preferences, circumstances."""
    FEEDBACK = 2
    """How the subject wants things done: corrections and confirmations."""
    PROJECT = 3
    """Current work, decisions, dates."""
    REFERENCE = 4
    """Where to find something."""


class Visibility(Open):
    """Which subjects may recall a memory."""

    UNSPECIFIED = 0
    """Same as PRIVATE. In an update: unchanged."""
    PRIVATE = 1
    """Its own subject only. Required for MEMORY_KIND_USER."""
    TEAM = 2
    """Any subject of the tenant."""


class Polarity(Open):
    """Direction of feedback."""

    UNSPECIFIED = 0
    """Neither."""
    CORRECTION = 1
    """ "Not like that." """
    CONFIRMATION = 2
    """ "Yes, like that." """


class RecallMode(Open):
    """How a recall searches."""

    UNSPECIFIED = 0
    """HYBRID if an embedder is configured, otherwise LEXICAL."""
    HYBRID = 1
    """By words and by meaning, fused. Without an embedder, or if it fails, the search is by words
    only and `degraded` is set.
    """
    LEXICAL = 2
    """By words."""
    VECTOR = 3
    """By meaning. Fails without an embedder."""


class MemoryOrigin(Open):
    """How a memory was made."""

    UNSPECIFIED = 0
    """By the bot with Remember."""
    EXTRACTION = 1
    """By CommitExtraction."""
    IMPORT = 2
    """By ImportMemories, without an origin of its own."""


class NearDuplicate(Open):
    """What to do with a fact if a memory has the same content in a different spelling."""

    UNSPECIFIED = 0
    """Same as MERGE."""
    MERGE = 1
    """Merge it into the memory."""
    REFUSE = 2
    """Fail with MEMORY_DUPLICATE. The error names the memory."""
    KEEP = 3
    """Store it as a separate memory."""


class RememberOutcome(Open):
    """What Remember did with a fact."""

    UNSPECIFIED = 0
    """Unknown."""
    CREATED = 1
    """A new memory was created."""
    REINFORCED = 2
    """A memory with exactly this content exists. Its `reinforced` was incremented."""
    MERGED = 3
    """Merged into a memory with the same content in a different spelling."""
    RECALLED = 4
    """The fact repeats a memory that this session has just recalled. Nothing changed."""
    REPLACED = 5
    """Replaced the content of the memory with its `external_key`."""


class ConflictDifference(Open):
    """How two memories on the same topic differ."""

    UNSPECIFIED = 0
    """Unknown."""
    NUMBERS = 1
    """Numbers, amounts or dates."""
    NEGATION = 2
    """One of them contains a negation."""
    WORDS = 3
    """One word is replaced by another."""


class FactRejection(Open):
    """Why an entry of a model's reply was rejected."""

    UNSPECIFIED = 0
    """It was not rejected."""
    MALFORMED = 1
    """It does not have the form that the prompt asks for."""
    TURNS_UNKNOWN = 2
    """It cites no turn, or one that the model was not shown."""
    NOT_SAID_BY_USER = 3
    """It comes only from the assistant, a tool or the system."""
    SECRET = 4
    """It contains a suspected secret."""
    INSTRUCTION = 5
    """It imitates memoird's own text, or instructs an assistant."""
    UNSUPPORTED = 6
    """It contains a number or an address that does not occur in the turns."""
    ECHO = 7
    """A recall showed it to the assistant."""
    REPEATED = 8
    """The reply contains it twice, or corrects it itself."""
    OUTDATED = 9
    """The memory that it would replace is newer."""
    TOO_MANY = 10
    """The reply contains too many entries."""


class BreakerState(Open):
    """State of a circuit breaker, which pauses compactions that fail repeatedly."""

    UNSPECIFIED = 0
    """Unknown."""
    CLOSED = 1
    """Compactions are attempted."""
    OPEN = 2
    """No compaction is attempted. Windows are cut."""
    HALF_OPEN = 3
    """One compaction is attempted, and its result decides."""


class SummaryMaker(Open):
    """What made a summary."""

    UNSPECIFIED = 0
    """Unknown."""
    EXTRACTIVE = 1
    """memoird, without a model."""
    MODEL = 2
    """A configured model or webhook."""


class OmissionReason(Open):
    """Why a window omits or changes turns."""

    UNSPECIFIED = 0
    """Another reason."""
    DROPPED = 1
    """The history dropped them at its limits."""
    CUT = 2
    """They precede the cut."""
    SALIENCE = 3
    """They were the least important turns in the middle."""
    SUPERSEDED = 4
    """A later call of the same tool with the same arguments has a newer result."""
    TRIMMED = 5
    """A long result was trimmed to its head and tail."""
    EXCERPT = 6
    """The first user turn did not fit and was excerpted."""
    SUMMARIZED = 7
    """The summary covers them."""


class HistoryScope(Open):
    """Which turns of a session to read."""

    UNSPECIFIED = 0
    """Same as HISTORY_SCOPE_LIVE."""
    LIVE = 1
    """The turns that the history of the live generation has not dropped."""
    JOURNAL = 2
    """All turns of a generation, live or ended, until `journal.retention`. Rewound turns have
    `removed` set.
    """
    LONGEST = 3
    """With a journal, same as HISTORY_SCOPE_JOURNAL but without rewound turns. Without one, same
    as HISTORY_SCOPE_LIVE.
    """


class SessionState(Open):
    """Whether a session is live."""

    UNSPECIFIED = 0
    """Same as SESSION_STATE_LIVE."""
    LIVE = 1
    """Live sessions."""
    ENDED = 2
    """Ended generations, each as one entry, so that a session id may occur several times. An
    expired session is one once a sweep has ended it. Fails with JOURNAL_OFF without a journal.
    """
    ANY = 3
    """Live sessions and ended generations. A session that ends between two pages may be in both of
    them, as live and as ended. Fails with JOURNAL_OFF without a journal.
    """


class SessionOrder(Open):
    """The order of a list of sessions. The time of a session is `last_access`, that of an ended
    generation is `ended_at`.
    """

    UNSPECIFIED = 0
    """Same as SESSION_ORDER_NEWEST."""
    NEWEST = 1
    """Latest time first."""
    OLDEST = 2
    """Earliest time first."""
    ID = 3
    """By the bytes of the id. The ended generations of an id are in the order of their ends,
    before the live one.
    """


class CompactionTrigger(Open):
    """Why a compaction started."""

    UNSPECIFIED = 0
    """Unknown."""
    PREEMPTIVE = 1
    """A window reached the soft watermark."""
    REACTIVE = 2
    """A window reached the hard watermark, or omits turns that no summary covers."""
    HISTORY = 3
    """The history is about to drop turns that no summary covers."""
    COMMAND = 4
    """`CompactSession` was called."""


@dataclass(slots=True)
class Turn:
    """One contribution by one role. At most `limits.turn_bytes` encoded (20 MiB by default, less
    with little memory) and `limits.parts_per_turn` parts (128).
    """

    role: Role = Role.UNSPECIFIED
    """The author. Required."""
    parts: list[Part] = field(default_factory=list)
    """Content in order, at least one part."""
    timestamp: datetime | None = None
    """Time of the message. If unset, the time of arrival. Years 1970 to 9999."""
    seq: int = 0
    """Position in the generation, from 1. Set by memoird, ignored on input."""
    salience: float | None = None
    """Importance as judged by the bot, 0 to 1. Used by the window policy `salience`."""
    pinned: bool = False
    """Whether to exclude the turn from dropping and cutting. At most `limits.pinned_turns` (10)
    and `limits.pinned_bytes` (256 KiB) per generation, which count in the limits of the
    history.
    """
    metadata: dict[str, str] = field(default_factory=dict)
    """Arbitrary labels of the bot. At most 64 entries and 16 KiB."""
    extra_json: Json = ""
    """Fields of the provider's message that memoird does not use, as a JSON object. Returned
    unchanged. Counts in the turn's size.
    """
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """Format to which the `extra_json` of the turn and of its parts belongs. Set from the format
    of `messages_json`, or by the bot. `extra_json` is returned only in that format, or in any
    format if this is unset.
    """
    removed: bool = False
    """Whether `RewindSession` removed the turn, so that only the journal has it. Set by memoird,
    ignored on input.
    """
    client_id: str = ""
    """The client's own id of the message that the turn is, or is a part of. At most 256 bytes.
    Several turns may have the same. Never sent to a provider.
    """
    client_json: Json = ""
    """Arbitrary JSON that the client stores with the turn, such as its framework's form of the
    message. At most `limits.client_json_bytes` (256 KiB) without base64 media, and 128 levels.
    Returned byte for byte, counts in the turn's size, never sent to a provider.
    """

    @property
    def extra(self) -> Any:
        """`extra_json` as a value. None if it is empty."""
        return _parsed(self.extra_json)

    @property
    def client(self) -> Any:
        """`client_json` as a value. None if it is empty."""
        return _parsed(self.client_json)


@dataclass(slots=True)
class Part:
    """A piece of a turn."""

    text: str | None = None
    """Plain text. May be empty."""
    tool_use: ToolUse | None = None
    """A tool call by the assistant."""
    tool_result: ToolResult | None = None
    """The result of a tool call."""
    media: Media | None = None
    """An image, document or audio."""
    thinking: Thinking | None = None
    """The model's reasoning."""
    extra_json: Json = ""
    """Fields of the provider's part that memoird does not use, as a JSON object. Returned
    unchanged. Counts in the turn's size.
    """

    @property
    def extra(self) -> Any:
        """`extra_json` as a value. None if it is empty."""
        return _parsed(self.extra_json)


@dataclass(slots=True)
class ToolUse:
    """A tool call. Only in turns of ROLE_ASSISTANT."""

    id: str = ""
    """The provider's id of the call, 1 to 4,096 bytes. May be reused in a generation once the call
    has its result.
    """
    name: str = ""
    """The tool's name, 1 to 256 bytes."""
    input_json: Json = ""
    """The arguments as the model wrote them, stored byte for byte."""

    @property
    def input(self) -> Any:
        """`input_json` as a value. None if it is empty."""
        return _parsed(self.input_json)


@dataclass(slots=True)
class ToolResult:
    """The result of a tool call. Only in turns of ROLE_TOOL and ROLE_USER."""

    tool_use_id: str = ""
    """Id of the call: the latest call with this id that has no result yet. In turns of
    MESSAGE_FORMAT_OPENAI_RESPONSES the generation need not have such a call, for example for an
    approval after the session expired. Windows, and HISTORY_SCOPE_LIVE in a provider's format,
    show such a result as a note.
    """
    content: str = ""
    """The result as text, stored byte for byte."""
    parts: list[Part] = field(default_factory=list)
    """The result as rich content: text and media parts only."""
    is_error: bool = False
    """Whether the tool failed."""


@dataclass(slots=True)
class Media:
    """An image, document or audio."""

    media_type: str = ""
    """The IANA media type, such as `image/png`. At most 256 bytes. May be empty if the provider's
    message has none.
    """
    data: bytes | None = None
    """The content itself."""
    uri: str | None = None
    """A URL or a provider's file id."""
    name: str = ""
    """Display name, at most 1,024 bytes."""


@dataclass(slots=True)
class Thinking:
    """The model's reasoning, stored with the tool use that follows it."""

    text: str = ""
    """The reasoning. If redacted, the provider's opaque data."""
    signature: str = ""
    """The provider's signature of the text."""
    redacted: bool = False
    """Whether the provider hid the reasoning."""


@dataclass(slots=True)
class ModelUsage:
    """The provider's charge for a model call. The size of the request is the sum of
    `input_tokens`, `cache_read_tokens` and `cache_creation_tokens`.
    """

    model: str = ""
    """The model's name, at most 256 bytes."""
    input_tokens: int = 0
    """Tokens of the request as the provider reports them."""
    output_tokens: int = 0
    """Tokens of the reply."""
    cache_read_tokens: int = 0
    """Tokens of the request read from the provider's cache and not included in `input_tokens`:
    Anthropic's `cache_read_input_tokens`. 0 for OpenAI, which includes cached tokens in
    `input_tokens` and `prompt_tokens`.
    """
    cache_creation_tokens: int = 0
    """Tokens of the request written to the provider's cache and not included in `input_tokens`:
    Anthropic's `cache_creation_input_tokens`. 0 if `input_tokens` includes them.
    """


@dataclass(slots=True)
class Budget:
    """Token budget of a model call. A window may have `context_window - max_reply_tokens -
    safety_headroom - tool_result_headroom` tokens.
    """

    context_window: int | None = None
    """Context window of the model, for request and reply. If a call sets it, the reserves that the
    call does not set are scaled to it instead of taken from the profile.
    """
    max_reply_tokens: int | None = None
    """Tokens reserved for the reply."""
    safety_headroom: int | None = None
    """Tokens reserved for errors of the token count."""
    tool_result_headroom: int | None = None
    """Tokens reserved for the next tool results."""


@dataclass(slots=True)
class WindowPolicy:
    """How a window selects its turns."""

    sliding_window: SlidingWindow | None = None
    """The system prompt and the last turns."""
    head_tail: HeadTail | None = None
    """System prompt, anchor (the first user turn), pinned turns and the last turns."""
    token_budget: TokenBudget | None = None
    """Same as `head_tail`, with as many of the last turns as the budget allows."""
    salience: Salience | None = None
    """Same as `token_budget`, but drops the least important tool units and turns of the middle
    first.
    """


@dataclass(slots=True)
class SlidingWindow:
    """The system prompt and the last turns. Keeps neither the anchor nor a stable prefix."""

    turns: int = 0
    """Number of turns, at least 1."""


@dataclass(slots=True)
class HeadTail:
    """System prompt, anchor, pinned turns and the last turns."""

    turns: int = 0
    """Number of last turns. 0 means as many as the budget allows."""


@dataclass(slots=True)
class TokenBudget:
    """As many of the last turns as the budget allows."""


@dataclass(slots=True)
class Salience:
    """Drops the least important tool units and turns of the middle first."""


@dataclass(slots=True)
class Document:
    """A document."""

    namespace: list[str] = field(default_factory=list)
    """The parts of its namespace."""
    key: str = ""
    """Its key, unique in the namespace."""
    json: Json | None = None
    """Any JSON value, as it was put."""
    bytes: Bytes | None = None
    """Binary data."""
    version: int = 0
    """Version, from 1, incremented by each put. Starts again at 1 after the document was deleted
    or expired.
    """
    created_at: datetime | None = None
    """When version 1 was put."""
    updated_at: datetime | None = None
    """When this version was put."""
    expires_at: datetime | None = None
    """When it expires. Unset if never."""
    size: int = 0
    """Size of its value in bytes."""

    @property
    def value(self) -> Any:
        """`json` as a value. None if it is empty."""
        return _parsed(self.json)


@dataclass(slots=True)
class GetDocumentRequest:
    """Reads a document."""

    namespace: list[str] = field(default_factory=list)
    """The parts of its namespace."""
    key: str = ""
    """The key in its namespace."""
    ttl: timedelta | None = None
    """If set, and if the document expires at all, restarts its time to live with this value, at
    most ten years. The version does not change.
    """


@dataclass(slots=True)
class GetDocumentResponse:
    """A document."""

    document: Document | None = None
    """With its value."""


@dataclass(slots=True)
class PutDocumentRequest:
    """Stores a document."""

    namespace: list[str] = field(default_factory=list)
    """The parts of its namespace, at least one."""
    key: str = ""
    """The key in its namespace."""
    json: Json | None = None
    """Any JSON value."""
    bytes: Bytes | None = None
    """Binary data."""
    expected_version: int | None = None
    """If set, fail with STALE_VERSION unless the document has this version. 0 means that it does
    not exist. The error's metadata has the current `version`.
    """
    ttl: timedelta | None = None
    """Time to live from now on, at most ten years. If unset, the document does not expire."""
    idempotency_key: str = ""
    """Idempotency key of this document, at most 256 bytes. A repeat within 24 hours stores nothing
    and returns the document as the first call stored it, also if it has a newer version or was
    deleted since. Only the newest 100,000 keys of a tenant are remembered, with those of
    Remember. DeleteDocuments with `erase` removes the keys of the documents that it deletes.
    """

    @property
    def value(self) -> Any:
        """`json` as a value. None if it is empty."""
        return _parsed(self.json)


@dataclass(slots=True)
class PutDocumentResponse:
    """The stored document."""

    document: Document | None = None
    """Without its value."""
    duplicate: bool = False
    """Whether this repeats an earlier `idempotency_key`. Then nothing was stored."""


@dataclass(slots=True)
class DeleteDocumentRequest:
    """Deletes a document."""

    namespace: list[str] = field(default_factory=list)
    """The parts of its namespace."""
    key: str = ""
    """The key in its namespace."""
    expected_version: int | None = None
    """As in PutDocumentRequest. A late repetition then deletes no newer document."""


@dataclass(slots=True)
class DeleteDocumentResponse:
    """The result of a deletion."""

    deleted: bool = False
    """Whether the document existed."""


@dataclass(slots=True)
class DeleteDocumentsRequest:
    """Selects documents to delete. All conditions must hold."""

    namespace_prefix: list[str] = field(default_factory=list)
    """Delete from this namespace and all below it. At least one part."""
    exact_namespace: bool = False
    """Delete from exactly this namespace only."""
    key_prefix: str = ""
    """Delete only keys with this prefix."""
    key_from: str = ""
    """Delete only keys from this one on, inclusive."""
    key_before: str = ""
    """Delete only keys before this one. If empty, no bound."""
    erase: bool = False
    """Whether to clear the deleted data from the disk's pages as well, before the call returns if
    that can be done soon. This reads the tenant's whole file. If false, SQLite overwrites the
    data in the file with the next write of the pages, but copies stay in unused space until the
    next forget or erasure. Has no effect with `journal.postgres`, where `VACUUM` clears the
    pages.
    """


@dataclass(slots=True)
class DeleteDocumentsResponse:
    """The result of a deletion."""

    deleted: int = 0
    """Number of deleted documents."""
    erased: bool = False
    """Whether nothing of them is left on the disk's pages or, in a database, as rows. If `erase`
    was set and this is false, the rest is done in the background.
    """


@dataclass(slots=True)
class ListDocumentsRequest:
    """Selects documents. All conditions must hold."""

    namespace_prefix: list[str] = field(default_factory=list)
    """List this namespace and all below it. If empty, all namespaces."""
    exact_namespace: bool = False
    """List exactly this namespace only."""
    key_prefix: str = ""
    """List only keys with this prefix."""
    key_from: str = ""
    """List only keys from this one on, inclusive."""
    key_before: str = ""
    """List only keys before this one. If empty, no bound."""
    filter_json: Json = ""
    """List only documents with a JSON object that matches this filter. The filter is a JSON
    object. Each member names a member of the document, and its value is one of: a value to be
    equal to; an object of the operators `$eq`, `$ne`, `$gt`, `$gte`, `$lt` and `$lte`, which
    all must hold; or a nested filter for an object. An absent member equals null. Numbers are
    ordered among numbers and strings among strings by code point; other values are neither
    greater nor less. At most 16 KiB, 64 conditions and 8 levels. If empty, all documents match.
    """
    descending: bool = False
    """Whether to list in reverse order."""
    include_values: bool | None = None
    """Whether to return the values. Default true."""
    page_size: int = 0
    """Maximum number of documents, up to 1,000. Default 100. A page may have fewer if the
    documents are large, and fewer or none with a filter. `next_page_token` tells whether there
    are more.
    """
    page_token: str = ""
    """The `next_page_token` of the previous page. The other fields must be the same."""

    @property
    def filter(self) -> Any:
        """`filter_json` as a value. None if it is empty."""
        return _parsed(self.filter_json)


@dataclass(slots=True)
class ListDocumentsResponse:
    """A page of documents."""

    documents: list[Document] = field(default_factory=list)
    """The documents, in the requested order."""
    next_page_token: str = ""
    """Token for the next page, or empty on the last page."""


@dataclass(slots=True)
class ListNamespacesRequest:
    """Lists namespaces."""

    prefix: list[str] = field(default_factory=list)
    """List only namespaces that start with these parts. `*` matches any one part."""
    suffix: list[str] = field(default_factory=list)
    """List only namespaces that end with these parts. `*` matches any one part."""
    max_depth: int = 0
    """Truncate namespaces to this number of parts and return each result once. 0 means no
    truncation.
    """
    page_size: int = 0
    """Maximum number of namespaces, up to 1,000. Default 100. A page may have fewer, or none:
    `next_page_token` tells whether there are more.
    """
    page_token: str = ""
    """The `next_page_token` of the previous page. The other fields must be the same."""


@dataclass(slots=True)
class ListNamespacesResponse:
    """A page of namespaces."""

    namespaces: list[Namespace] = field(default_factory=list)
    """The namespaces, in order."""
    next_page_token: str = ""
    """Token for the next page, or empty on the last page."""


@dataclass(slots=True)
class Namespace:
    """A namespace, or a prefix of several."""

    parts: list[str] = field(default_factory=list)
    """The parts of its path."""


@dataclass(slots=True)
class BatchDocumentsRequest:
    """Operations to apply in one transaction."""

    operations: list[DocumentOperation] = field(default_factory=list)
    """Up to 256."""


@dataclass(slots=True)
class DocumentOperation:
    """One operation of a batch."""

    get: GetDocumentRequest | None = None
    """As GetDocument, but a document that does not exist is not an error."""
    put: PutDocumentRequest | None = None
    """As PutDocument."""
    delete: DeleteDocumentRequest | None = None
    """As DeleteDocument."""


@dataclass(slots=True)
class BatchDocumentsResponse:
    """The results of a batch."""

    results: list[DocumentResult] = field(default_factory=list)
    """One for each operation, in order. The values read may have 16 MiB in total
    (DOCUMENTS_TOO_LARGE).
    """


@dataclass(slots=True)
class DocumentResult:
    """The result of one operation."""

    document: Document | None = None
    """For a get, the document if it exists. For a put, the document without its value."""
    deleted: bool = False
    """For a delete, whether the document existed."""
    duplicate: bool = False
    """For a put, as in PutDocumentResponse."""


@dataclass(slots=True)
class MemorySource:
    """The turns that a memory was made from."""

    session_id: str = ""
    """The session's id."""
    generation: str = ""
    """A generation's ULID. If empty, the live one, else the newest."""
    seqs: list[int] = field(default_factory=list)
    """The turns, at most 256."""


@dataclass(slots=True)
class Memory:
    """A stored fact."""

    id: str = ""
    """A ULID."""
    subject: str = ""
    """The owner."""
    kind: MemoryKind = MemoryKind.UNSPECIFIED
    """What it is about."""
    visibility: Visibility = Visibility.UNSPECIFIED
    """Which subjects may recall it."""
    polarity: Polarity = Polarity.UNSPECIFIED
    """Only for MEMORY_KIND_FEEDBACK."""
    content: str = ""
    """The fact as text."""
    tags: list[str] = field(default_factory=list)
    """Labels, sorted."""
    importance: float = 0.0
    """0 to 1."""
    source: MemorySource | None = None
    """The turns that it was made from. Unset if unknown."""
    observed_at: datetime | None = None
    """When the fact was true."""
    created_at: datetime | None = None
    """When it was first stored."""
    updated_at: datetime | None = None
    """When it was last changed, reinforced or merged."""
    expires_at: datetime | None = None
    """When it stops being recalled. Unset if never."""
    superseded_by: str = ""
    """Id of the memory that replaced it. If set, this memory is history and not recalled."""
    reinforced: int = 0
    """Number of times the fact was stated again."""
    recall_count: int = 0
    """Number of times it was recalled."""
    last_recalled_at: datetime | None = None
    """When it was last recalled. Unset if never."""
    pinned: bool = False
    """Whether it comes first in the manifest."""
    pinned_by_dream: bool = False
    """Whether a dream sweep (`long_term.dream`) pinned it. A sweep may also unpin it."""
    origin: MemoryOrigin = MemoryOrigin.UNSPECIFIED
    """How it was made."""
    external_key: str = ""
    """The bot's own key, unique among the current memories of its subject."""
    metadata_json: Json = ""
    """Metadata of the bot, a JSON object as it was sent. Empty if there is none."""

    @property
    def metadata(self) -> Any:
        """`metadata_json` as a value. None if it is empty."""
        return _parsed(self.metadata_json)


@dataclass(slots=True)
class RememberRequest:
    """Stores a fact."""

    subject: str = ""
    """The owner. If empty, `source` is required and the subject of its session is used."""
    kind: MemoryKind = MemoryKind.UNSPECIFIED
    """What the fact is about. Required."""
    content: str = ""
    """The fact as text, at most `long_term.content_bytes` (8 KiB). If empty, the text of the turns
    in `source.seqs`.
    """
    tags: list[str] = field(default_factory=list)
    """Labels: up to 32, each of up to 128 bytes."""
    importance: float | None = None
    """0 to 1. Default 0.5."""
    source: MemorySource | None = None
    """The session and turns that the fact comes from. The turns must exist."""
    observed_at: datetime | None = None
    """When the fact was true. If unset, the time of the last turn in `source.seqs`, else now.
    """
    expires_at: datetime | None = None
    """When to stop recalling it. If unset, never."""
    supersedes_id: str = ""
    """Id of a memory of this subject to replace."""
    pinned: bool = False
    """Whether it comes first in the manifest."""
    polarity: Polarity = Polarity.UNSPECIFIED
    """Only for MEMORY_KIND_FEEDBACK."""
    idempotency_key: str = ""
    """Idempotency key, at most 256 bytes. A repeat of the request within 24 hours returns the
    original response and stores nothing.
    """
    visibility: Visibility = Visibility.UNSPECIFIED
    """Which subjects may recall it."""
    near_duplicate: NearDuplicate = NearDuplicate.UNSPECIFIED
    """What to do if a memory has the same content in a different spelling."""
    external_key: str = ""
    """The bot's own key, up to 256 bytes. If a current memory of the subject has it, that memory
    gets the content of this request under the same id (REPLACED), and the old content becomes
    history. Otherwise a separate memory is created, regardless of duplicates.
    """
    metadata_json: Json = ""
    """Metadata of the bot: a JSON object of up to 4 KiB, by which Recall and ListMemories can
    filter. Not searched.
    """
    vector: list[float] = field(default_factory=list)
    """The fact's vector, if the bot makes vectors itself. It must have as many dimensions as all
    other vectors, at most 4,096. If an embedder is configured, it must be made by the same
    model.
    """
    keep_apart: bool = False
    """Whether to store a separate memory even if another one has exactly the same content, and to
    never merge it later. For identical statements by several authors.
    """

    @property
    def metadata(self) -> Any:
        """`metadata_json` as a value. None if it is empty."""
        return _parsed(self.metadata_json)


@dataclass(slots=True)
class RememberResponse:
    """The memory that contains the fact."""

    memory: Memory | None = None
    """The memory that has the fact now."""
    outcome: RememberOutcome = RememberOutcome.UNSPECIFIED
    """What was done with the fact."""
    redacted: int = 0
    """Number of suspected secrets redacted before storing."""


@dataclass(slots=True)
class RecallRequest:
    """Searches memories."""

    query: str = ""
    """The query text, up to 4 KiB. If empty in BuildContext, the current exchange is used: the
    user's last request and the turns since.
    """
    subjects: list[str] = field(default_factory=list)
    """Subjects to search, up to 16. If empty, the subject of `session_id`; without one, only
    memories that all subjects may recall.
    """
    kinds: list[MemoryKind] = field(default_factory=list)
    """If set, return only these kinds."""
    tags: list[str] = field(default_factory=list)
    """Return only memories with all of these labels. Of each subject, the newest 65,536 memories
    with labels are searched.
    """
    after: datetime | None = None
    """Return only memories observed at or after this time."""
    before: datetime | None = None
    """Return only memories observed before this time."""
    limit: int = 0
    """Maximum number of hits, up to 100. Default 8."""
    mode: RecallMode = RecallMode.UNSPECIFIED
    """How to search."""
    session_id: str = ""
    """The session that receives the hits. If it later sends one of them to Remember, it is not a
    new fact (RECALLED).
    """
    explain: bool = False
    """Whether to return `parts` of each score. Such a recall is for inspection: it is not recorded
    and does not count as a use of the memories.
    """
    rerank: bool | None = None
    """Whether to use the configured reranker. Default true."""
    metadata_filter_json: Json = ""
    """Return only memories whose `metadata_json` matches this filter, see
    `ListDocumentsRequest.filter_json`. Of each subject, the newest 65,536 memories with
    metadata are searched.
    """
    subject_prefix: str = ""
    """Also search all subjects with this id prefix, up to 64 (SUBJECTS_TOO_MANY)."""
    vector: list[float] = field(default_factory=list)
    """The query's vector, if the bot makes vectors itself. Then `query` may be empty."""
    min_relevance: float | None = None
    """Minimum `relevance` of a hit, 0 to 1. Default: in BuildContext a floor that drops unrelated
    memories, in Recall none.
    """

    @property
    def metadata_filter(self) -> Any:
        """`metadata_filter_json` as a value. None if it is empty."""
        return _parsed(self.metadata_filter_json)


@dataclass(slots=True)
class ScoreParts:
    """The parts of a score, which is (`fused` + `beside`) × `importance` × `recency`."""

    words: float = 0.0
    """BM25 score by words, 0 or more."""
    cosine: float | None = None
    """Cosine similarity, -1 to 1. Unset for a search by words only, and for a memory without a
    vector.
    """
    words_share: float = 0.0
    """`words` relative to the best hit by words, 0 to 1."""
    meaning_share: float | None = None
    """`cosine` relative to the best hit by meaning, 0 to 1."""
    form: float = 0.0
    """Factor for length and form in a hybrid search. Short texts and questions score lower."""
    fused: float = 0.0
    """Weighted sum of both shares, times `form`."""
    beside: float = 0.0
    """Bonus from the relevance of the memories made from the turns directly before and after.
    """
    importance: float = 0.0
    """Factor for importance."""
    recency: float = 0.0
    """Factor for age."""
    reranker: float | None = None
    """The reranker's score, 0 to 1. Unset if it was not used. It replaces both shares and `form`
    in `fused`.
    """


@dataclass(slots=True)
class RecallHit:
    """A memory that was found."""

    memory: Memory | None = None
    """The memory."""
    score: float = 0.0
    """Ranking score, comparable within one response only."""
    lexical_rank: int = 0
    """Rank in the search by words, from 1. 0 if not found by words."""
    vector_rank: int = 0
    """Rank in the search by meaning, from 1. 0 if not found by meaning."""
    age: timedelta | None = None
    """Time since `observed_at`."""
    parts: ScoreParts | None = None
    """The parts of the score. Set if the request has `explain`."""
    relevance: float = 0.0
    """Relevance to the query, 0 to 1. Unlike `score`, it is comparable across queries. With a
    vector it is the cosine, rescaled so that unrelated memories have 0, plus up to 0.3 for
    shared words. By words alone it is `word_coverage`. The reply to a question gets up to 0.75
    of the relevance of the question.
    """
    cosine: float | None = None
    """Cosine similarity, -1 to 1. Unset for a search by words only, and for a memory without a
    vector.
    """
    word_coverage: float = 0.0
    """Share of the query covered by its words, 0 to 1. Rare words have more weight, and words of
    requests and courtesies have none.
    """


@dataclass(slots=True)
class RecallResponse:
    """The hits, best first."""

    hits: list[RecallHit] = field(default_factory=list)
    """The hits, best first."""
    mode: RecallMode = RecallMode.UNSPECIFIED
    """The search mode that was used."""
    degraded: bool = False
    """Whether the search differs from the requested one. `notes` explain it."""
    notes: list[str] = field(default_factory=list)
    """Human-readable notes."""
    reranked: bool = False
    """Whether a reranker ordered the best hits. If a configured reranker fails, the order is by
    words and meaning, and `notes` say so.
    """


@dataclass(slots=True)
class GetMemoryRequest:
    """Reads a memory."""

    id: str = ""
    """Id of the memory."""
    subject: str = ""
    """If set, the memory must belong to this subject or be visible to it."""
    external_key: str = ""
    """Instead of `id`: the key of a current memory of `subject`."""


@dataclass(slots=True)
class GetMemoryResponse:
    """A memory."""

    memory: Memory | None = None
    """The memory."""


@dataclass(slots=True)
class ListMemoriesRequest:
    """Lists memories."""

    subject: str = ""
    """If set, list only memories of this subject."""
    kind: MemoryKind = MemoryKind.UNSPECIFIED
    """If set, list only memories of this kind."""
    tag: str = ""
    """If set, list only memories with this label."""
    page_size: int = 0
    """Maximum number of memories, up to 1,000. Default 100."""
    page_token: str = ""
    """The `next_page_token` of the previous page. Empty for the first page."""
    include_history: bool = False
    """Whether to include superseded and expired memories."""
    metadata_filter_json: Json = ""
    """List only memories whose `metadata_json` matches this filter, see
    `ListDocumentsRequest.filter_json`. Then a page may have fewer memories, or none:
    `next_page_token` tells whether there are more.
    """
    subject_prefix: str = ""
    """List only memories of subjects with this id prefix."""

    @property
    def metadata_filter(self) -> Any:
        """`metadata_filter_json` as a value. None if it is empty."""
        return _parsed(self.metadata_filter_json)


@dataclass(slots=True)
class ListMemoriesResponse:
    """A page of memories."""

    memories: list[Memory] = field(default_factory=list)
    """The memories, oldest first."""
    next_page_token: str = ""
    """Token for the next page, or empty on the last page."""


@dataclass(slots=True)
class ListSubjectsRequest:
    """Lists subjects."""

    prefix: str = ""
    """List only subjects with this id prefix."""
    page_size: int = 0
    """Maximum number of subjects, up to 1,000. Default 100."""
    page_token: str = ""
    """The `next_page_token` of the previous page. Empty for the first page."""


@dataclass(slots=True)
class ListSubjectsResponse:
    """A page of subjects."""

    subjects: list[SubjectMemories] = field(default_factory=list)
    """The subjects, by id."""
    next_page_token: str = ""
    """Token for the next page, or empty on the last page."""


@dataclass(slots=True)
class SubjectMemories:
    """A subject that has memories."""

    subject: str = ""
    """The subject's id."""
    memories: int = 0
    """Number of memories that can be recalled."""


@dataclass(slots=True)
class ListConflictsRequest:
    """Lists pairs of memories that may contradict each other."""

    subject: str = ""
    """The subject. Its newest 1,000 memories are compared."""
    page_size: int = 0
    """Maximum number of pairs, up to 100. Default 20."""
    page_token: str = ""
    """The `next_page_token` of the previous page. Empty for the first page."""


@dataclass(slots=True)
class MemoryConflict:
    """Two memories that may contradict each other."""

    older: Memory | None = None
    """The one observed first."""
    newer: Memory | None = None
    """The one observed last."""
    likeness: float = 0.0
    """Similarity, 0 to 1: by words, and by meaning if both have a vector."""
    difference: ConflictDifference = ConflictDifference.UNSPECIFIED
    """How they differ."""


@dataclass(slots=True)
class ListConflictsResponse:
    """Pairs of memories that may contradict each other. Both may be true, so review them manually.
    """

    conflicts: list[MemoryConflict] = field(default_factory=list)
    """The pairs, most similar first."""
    next_page_token: str = ""
    """Token for the next page, or empty on the last page."""
    incomplete: bool = False
    """Whether the subject has older memories that were not compared."""


@dataclass(slots=True)
class UpdateMemoryRequest:
    """Changes a memory."""

    memory: Memory | None = None
    """The `id` and the new values. If `subject` is set, the memory must belong to it."""
    update_mask: list[str] = field(default_factory=list)
    """Fields to change, at least one: `content`, `kind`, `visibility`, `polarity`, `tags`,
    `importance`, `observed_at`, `expires_at`, `pinned` and `metadata_json`.
    """


@dataclass(slots=True)
class UpdateMemoryResponse:
    """The updated memory."""

    memory: Memory | None = None
    """The memory after the change."""
    redacted: int = 0
    """Number of suspected secrets redacted before storing."""


@dataclass(slots=True)
class MemoryFilter:
    """Selects memories that match all fields that are set. At least one must be set."""

    subject: str = ""
    """Select only memories of this subject."""
    kinds: list[MemoryKind] = field(default_factory=list)
    """Select only memories of these kinds."""
    tags: list[str] = field(default_factory=list)
    """Select only memories with all of these labels."""
    after: datetime | None = None
    """Select only memories observed at or after this time."""
    before: datetime | None = None
    """Select only memories observed before this time."""


@dataclass(slots=True)
class ForgetRequest:
    """Removes memories, and the versions that they superseded."""

    id: str | None = None
    """The memory with this id."""
    subject: str | None = None
    """All memories of this subject, and all other data stored about it."""
    filter: MemoryFilter | None = None
    """All memories that match."""
    dry_run: bool = False
    """Whether to only count."""


@dataclass(slots=True)
class ForgetResponse:
    """What was removed. For a dry run, what would be removed."""

    memories: int = 0
    """Memories that could be recalled."""
    superseded: int = 0
    """Older versions of memories."""
    vectors: int = 0
    """Vectors of these memories."""
    recall_events: int = 0
    """Recorded recalls that returned one of the memories."""
    queued_embeddings: int = 0
    """Texts queued for embedding."""
    cursors: int = 0
    """Extraction cursors and leases."""
    erased: bool = False
    """Whether nothing is left on the disk's pages. False after a dry run. Also false if a long-
    running read held the WAL or another forget is in progress (the rest is then done in the
    background), or if a backup was running, because its copies of the files may contain the
    data until it ends. With `journal.postgres`, true once all rows are removed; the database
    clears its pages by `VACUUM`.
    """


@dataclass(slots=True)
class GetManifestRequest:
    """Asks for the manifest of a subject."""

    subject: str = ""
    """The subject's id."""
    max_lines: int = 0
    """Maximum number of lines, up to 200. Default 200."""
    max_bytes: int = 0
    """Maximum size in bytes, up to 25,000. Default 25,000."""


@dataclass(slots=True)
class GetManifestResponse:
    """The memories of a subject as text for an agent's prompt."""

    text: str = ""
    """One line for each memory. Empty if there is none."""
    lines: int = 0
    """Number of lines."""
    truncated: bool = False
    """Whether a limit truncated the text. Then the last line says so."""


@dataclass(slots=True)
class LeaseExtractionRequest:
    """Leases turns of a session for extraction."""

    session_id: str = ""
    """The session's id."""
    generation: str = ""
    """A generation's ULID. If empty, the live one, else the newest."""
    subject: str = ""
    """Owner of the extracted facts. If empty, the session's subject."""


@dataclass(slots=True)
class LeaseExtractionResponse:
    """Leased turns. Without turns there is no lease and nothing to do."""

    lease: str = ""
    """The lease for CommitExtraction. Empty if there are no turns."""
    turns: list[Turn] = field(default_factory=list)
    """The turns, oldest first."""
    manifest: str = ""
    """Existing memories, as returned by GetManifest."""
    prompt: str = ""
    """A prompt for a model that contains the turns and the manifest."""
    expires_at: datetime | None = None
    """When the lease expires."""
    generation: str = ""
    """The generation of the turns."""
    cursor_seq: int = 0
    """The last turn extracted before this lease, or 0."""


@dataclass(slots=True)
class ExtractedMemory:
    """A fact found in leased turns."""

    kind: MemoryKind = MemoryKind.UNSPECIFIED
    """What the fact is about. Required."""
    content: str = ""
    """The fact as text."""
    tags: list[str] = field(default_factory=list)
    """Labels."""
    importance: float | None = None
    """0 to 1. Default 0.5."""
    polarity: Polarity = Polarity.UNSPECIFIED
    """Only for MEMORY_KIND_FEEDBACK."""
    observed_at: datetime | None = None
    """When the fact was true. If unset, the time of the last of its turns."""
    expires_at: datetime | None = None
    """When to stop recalling it. If unset, never."""
    supersedes_id: str = ""
    """Id of a memory to replace."""
    visibility: Visibility = Visibility.UNSPECIFIED
    """Which subjects may recall it."""
    seqs: list[int] = field(default_factory=list)
    """The leased turns that contain the fact. If empty, all of them."""


@dataclass(slots=True)
class CommitExtractionRequest:
    """Stores the facts found in leased turns."""

    lease: str = ""
    """The `lease` from LeaseExtraction."""
    memories: list[ExtractedMemory] = field(default_factory=list)
    """Up to 64 facts. May be empty."""


@dataclass(slots=True)
class CommitExtractionResponse:
    """The result of a commit."""

    cursor_seq: int = 0
    """The last extracted turn."""
    results: list[RememberResponse] = field(default_factory=list)
    """The outcome for each fact, in order."""


@dataclass(slots=True)
class LearnSessionRequest:
    """Extracts facts from the next turns of a session with the configured model."""

    session_id: str = ""
    """The session's id."""
    generation: str = ""
    """A generation's ULID. If empty, the live one, else the newest."""
    subject: str = ""
    """Owner of the extracted facts. If empty, the session's subject."""
    dry_run: bool = False
    """Whether to lease and store nothing. The model is called anyway."""


@dataclass(slots=True)
class LearnSessionResponse:
    """The facts that the model found, and their outcomes."""

    generation: str = ""
    """The generation of the turns."""
    first_seq: int = 0
    """The first turn shown to the model, or 0 if there was none."""
    through_seq: int = 0
    """The last turn shown to the model."""
    cursor_seq: int = 0
    """The last extracted turn, by this call or an earlier one."""
    model: str = ""
    """The model's name."""
    prompt_tokens: int = 0
    """Tokens of the prompt. Estimated if the provider does not report them."""
    answer_tokens: int = 0
    """Tokens of the reply."""
    facts: list[LearnedFact] = field(default_factory=list)
    """The entries of the reply, in order."""


@dataclass(slots=True)
class LearnedFact:
    """An entry of the model's reply."""

    kind: MemoryKind = MemoryKind.UNSPECIFIED
    """What the fact is about. Unspecified if the model gave no valid kind."""
    content: str = ""
    """The fact, with suspected secrets redacted."""
    seqs: list[int] = field(default_factory=list)
    """The turns that it cites."""
    rejection: FactRejection = FactRejection.UNSPECIFIED
    """Why it was rejected. Unspecified if it was accepted."""
    notes: list[str] = field(default_factory=list)
    """Human-readable notes on the parts of it that were ignored."""
    result: RememberResponse | None = None
    """The outcome; in a dry run, the expected one. Unset if it was rejected."""
    supersedes_id: str = ""
    """Id of the memory that it replaces, or empty."""


@dataclass(slots=True)
class ImportMemoriesRequest:
    """Memories to store unchanged."""

    memories: list[Memory] = field(default_factory=list)
    """Up to 500."""


@dataclass(slots=True)
class ImportMemoriesResponse:
    """The result of an import."""

    imported: int = 0
    """Number of new memories."""
    skipped: int = 0
    """Number of memories that existed already."""


@dataclass(slots=True)
class GetMemoryStatsRequest:
    """Asks for counts."""


@dataclass(slots=True)
class GetMemoryStatsResponse:
    """Counts of the tenant's memories."""

    memories: int = 0
    """Memories that can be recalled."""
    superseded: int = 0
    """Superseded memories."""
    subjects: int = 0
    """Subjects that have memories."""
    recall_events: int = 0
    """Recorded recalls."""
    embedding_model: str = ""
    """The embedder's model. Empty if none is configured, so that recall is by words only."""
    embedded: int = 0
    """Memories with a vector of this model."""
    embedding_queued: int = 0
    """Memories waiting to be embedded."""
    embedding_failed: int = 0
    """Memories whose embedding was abandoned."""
    file_bytes: int = 0
    """Size in bytes of the tenant's file and its WAL. 0 if the memories are in a database."""
    words_queued: int = 0
    """Memories waiting to be indexed again. Until then the old index finds them."""
    reranker: str = ""
    """The reranker. Empty if none is configured."""
    documents: int = 0
    """Documents (DocumentService), including expired ones that are not removed yet."""
    document_bytes: int = 0
    """Size in bytes of their values, keys and namespaces."""


@dataclass(slots=True)
class SessionInfo:
    """A live session, or an ended generation."""

    session_id: str = ""
    """The id that the bot chose."""
    generation: str = ""
    """The generation, a ULID."""
    subject: str = ""
    """Owner of the memories made from this session. Empty if the bot never set it."""
    history_turns: int = 0
    """Number of turns that `GetHistory` returns for HISTORY_SCOPE_LIVE, including the anchor. For
    an ended generation, the number at its end; HISTORY_SCOPE_JOURNAL returns its turns.
    """
    history_bytes: int = 0
    """Encoded size of those turns in bytes."""
    history_tokens: int = 0
    """Estimated number of tokens of those turns."""
    last_seq: int = 0
    """Seq of the newest turn, or 0 if there is none. `RewindSession` lowers it."""
    created_at: datetime | None = None
    """Start of the generation."""
    last_access: datetime | None = None
    """When the session was last touched."""
    expires_at: datetime | None = None
    """When the session expires unless it is touched. Unset if it never expires or has ended.
    """
    has_summary: bool = False
    """Whether a summary replaces the oldest exchanges."""
    state_version: int = 0
    """Version of the state, from 0. Every change of the state increments it."""
    compaction: CompactionInfo | None = None
    """Status of the session's compaction."""
    state_json: Json = ""
    """The state, if the request has `include_state`. `{}` before the first patch."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels set by the bot."""
    ttl_class: str = ""
    """TTL class chosen by the bot. Empty if it chose none."""
    keep_all: bool = False
    """Whether the session keeps its whole history."""
    ended_at: datetime | None = None
    """When the generation ended. Set only for ended generations that ListSessions returns."""
    end_reason: EndReason = EndReason.UNSPECIFIED
    """Why the generation ended. Set together with `ended_at`."""

    @property
    def state(self) -> Any:
        """`state_json` as a value. None if it is empty."""
        return _parsed(self.state_json)


@dataclass(slots=True)
class CompactionInfo:
    """Status of a session's compaction."""

    breaker: BreakerState = BreakerState.UNSPECIFIED
    """State of the session's circuit breaker."""
    consecutive_failures: int = 0
    """Failures since the last success."""
    last_error: str = ""
    """Reason of the last failure, or empty. GetSession appends the summarizer's reply for keys
    with the role `admin` only.
    """
    running: bool = False
    """Whether a compaction is in progress."""
    summaries: int = 0
    """Number of summaries made in this generation."""
    through_seq: int = 0
    """Last turn covered by the summary, or 0 without one."""


@dataclass(slots=True)
class SummaryInfo:
    """A summary that replaces the oldest turns of a session."""

    number: int = 0
    """Number of the summary in its generation, from 1."""
    first_seq: int = 0
    """First turn covered by this summary and not by the one before it."""
    through_seq: int = 0
    """Last turn covered."""
    turns: int = 0
    """Total number of turns covered, without those that windows still show verbatim."""
    made_at: datetime | None = None
    """When it was made."""
    made_by: SummaryMaker = SummaryMaker.UNSPECIFIED
    """What made it."""
    model: str = ""
    """The provider and its model, or `webhook`. Empty for SUMMARY_MAKER_EXTRACTIVE."""


@dataclass(slots=True)
class AppendRequest:
    """Appends turns to a session."""

    session_id: str = ""
    """The id that the bot chose for the chat, 1 to 256 bytes of any characters."""
    turns: list[Turn] = field(default_factory=list)
    """The turns, oldest first, 1 to 256. Cannot be combined with `messages_json`."""
    messages_json: Json = ""
    """The turns as the provider's own array of messages or items, in `format`. At most 128 levels
    deep, with at most 262,144 JSON values. Besides the provider's fields, a message or item may
    have `memoird_client_id` (a string) and `memoird_client_json` (any JSON). They become the
    `client_id` and `client_json` of its turn, and are in no `messages_json` that memoird
    returns.
    """
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """The format of `messages_json`."""
    subject: str = ""
    """Owner of the memories made from this session, at most 256 bytes. If empty, the current value
    is kept.
    """
    idempotency_key: str = ""
    """Idempotency key, at most 256 bytes. A repeat within 24 hours returns the original result and
    appends nothing. Only the newest 1,024 keys of a session are remembered.
    """
    expected_seq: int | None = None
    """If set, fail with STALE_SEQ unless `SessionInfo.last_seq` has this value. 0 means that the
    session has no turns. Rewound turns do not count.
    """
    expected_generation: str = ""
    """If set, fail with STALE_GENERATION unless this is the live generation."""
    usage: ModelUsage | None = None
    """The provider's charge for the last model call. It corrects memoird's token counts."""
    partial: bool = False
    """Whether the reply is still streaming."""
    state_patch_json: Json = ""
    """An RFC 7396 merge patch of the state, applied atomically with the turns. If empty, the state
    is unchanged.
    """
    expected_state_version: int | None = None
    """If set, fail with STALE_STATE_VERSION unless the state has this version."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels to set, atomically with the turns. An empty value removes a label; other labels are
    unchanged. A session has at most 16 labels, with names of 1 to 64 bytes and values of up to
    256 bytes. Labels survive a reset and are removed when the session ends.
    """
    ttl_class: str = ""
    """How long the session may be idle from now on: a name in the tenant's `ttl_classes`
    (TTL_CLASS_UNKNOWN otherwise), `default` for `session_ttl`, or `never`. If empty, the
    current class is kept. A session that never expires may still be evicted at a cap on the
    number of sessions.
    """
    keep_all: bool | None = None
    """Whether to keep the whole history instead of dropping the oldest turns at its limits.
    Windows are cut as usual. While true, an append or turn update that would exceed
    `max_history_bytes` fails with HISTORY_FULL. Once false, dropping resumes with the next
    append. If unset, the current value is kept.
    """

    @property
    def messages(self) -> Any:
        """`messages_json` as a value. None if it is empty."""
        return _parsed(self.messages_json)

    @property
    def state_patch(self) -> Any:
        """`state_patch_json` as a value. None if it is empty."""
        return _parsed(self.state_patch_json)


@dataclass(slots=True)
class AppendResponse:
    """The result of an append."""

    session: SessionInfo | None = None
    """The session after the append."""
    first_seq: int = 0
    """Seq of the first appended turn."""
    last_seq: int = 0
    """Seq of the last appended turn."""
    dropped_turns: int = 0
    """Number of oldest turns that the history dropped to stay within its limits."""
    duplicate: bool = False
    """Whether this repeats an earlier `idempotency_key`. Then nothing was appended, and the
    numbers are those of the first call.
    """


@dataclass(slots=True)
class BuildContextRequest:
    """Asks for the window of the next model call."""

    session_id: str = ""
    """The session's id."""
    append: AppendRequest | None = None
    """An append to do first. Its `session_id` must be empty or equal to the one above. Errors of
    the window that do not depend on the session are reported before anything is appended.
    """
    model: str = ""
    """A model profile of the configuration. If empty, the `default_model`."""
    budget: Budget | None = None
    """Overrides of the profile's budget, in tokens."""
    overhead_tokens: int = 0
    """Tokens that the bot itself adds to the model call."""
    system: str = ""
    """The system prompt."""
    tools_json: Json = ""
    """The provider's tool schemas as a JSON array, or empty. They are only counted."""
    policy: WindowPolicy | None = None
    """How to select turns. If unset, as configured."""
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """The format of `messages_json` in the response. If unset, the response has `turns` only.
    """
    attempt: int = 0
    """Retry count, 0 for the first attempt. Each retry reduces the budget by 10 %."""
    memories: RecallRequest | None = None
    """Memories to recall into the window, in a separate block after the turns, so that the
    provider's prompt cache stays valid. Its `session_id` must be empty or equal to the one
    above. Content already in the window is not repeated.
    """
    set_cache_control: bool = False
    """Whether to set `cache_control` in a `messages_json` of MESSAGE_FORMAT_ANTHROPIC at exactly
    the `cache_breakpoints` of the report. If false, the last two `cache_control` fields that
    came with the messages are kept: Anthropic accepts four per request, and the system prompt
    and the tools may have one each.
    """
    peek: bool = False
    """Build the window without side effects: the session is not touched, and no cut is stored.
    Cannot be combined with `append`.
    """
    recall_tool: bool = False
    """Offer the model the tool `read_earlier_turns`, which returns turns that the window omits.
    Its definition is `recall_tool_json` of the response, and counts in the budget. Needs a
    `format` (RECALL_TOOL_WITHOUT_FORMAT). Before the window is built, memoird appends the
    results of open calls of this tool if the assistant's newest turn has no other open call,
    unless `peek` is set. While other calls are open, the bot appends their results first.
    """

    @property
    def tools(self) -> Any:
        """`tools_json` as a value. None if it is empty."""
        return _parsed(self.tools_json)


@dataclass(slots=True)
class BuildContextResponse:
    """The window of the next model call."""

    turns: list[Turn] = field(default_factory=list)
    """The turns of the window. Turns that memoird inserted or changed have the metadata `memoird`:
    `elision`, `abandoned`, `excerpt`, `trimmed`, `superseded`, `summary`, or `acknowledgement`
    for the assistant's reply to a summary.
    """
    system: str = ""
    """The system prompt to send. For MESSAGE_FORMAT_ANTHROPIC it includes the system turns at the
    start of the session. Empty for MESSAGE_FORMAT_OPENAI, where it is the first message.
    """
    messages_json: Json = ""
    """The window as the provider's own message array, if a format was requested."""
    memories: list[RecallHit] = field(default_factory=list)
    """Memories recalled for this window, best first."""
    session: SessionInfo | None = None
    """The session after the append."""
    report: ContextReport | None = None
    """How the window was built."""
    memories_text: str = ""
    """The memories in the form of the last message of `messages_json`, for bots that send `turns`.
    Empty if there are none.
    """
    recall_tool_json: Json = ""
    """Definition of the tool `read_earlier_turns`, to add to the provider's array of tools. Set if
    `recall_tool` was. It is the same for all sessions, so that the prompt cache stays valid.
    """

    @property
    def messages(self) -> Any:
        """`messages_json` as a value. None if it is empty."""
        return _parsed(self.messages_json)

    @property
    def recall_tool(self) -> Any:
        """`recall_tool_json` as a value. None if it is empty."""
        return _parsed(self.recall_tool_json)


@dataclass(slots=True)
class ResolveRecallToolRequest:
    """A call of the tool `read_earlier_turns`."""

    session_id: str = ""
    """The session's id."""
    arguments_json: Json = ""
    """Arguments of the call, as the model wrote them."""
    call_id: str = ""
    """Id of the call. Required if `format` is set."""
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """The format of `messages_json` in the response. If unset, the response has `text` only.
    """
    max_bytes: int = 0
    """Maximum size of the text in bytes, at least 1,024. Default, and upper bound: half a byte per
    token of the model's input budget, 1,024 to 32,768.
    """
    model: str = ""
    """The model profile that reads the result. Empty means the `default_model`."""
    budget: Budget | None = None
    """Overrides of the profile's budget, in tokens."""

    @property
    def arguments(self) -> Any:
        """`arguments_json` as a value. None if it is empty."""
        return _parsed(self.arguments_json)


@dataclass(slots=True)
class ResolveRecallToolResponse:
    """The result of the call."""

    text: str = ""
    """Turns of the live generation, verbatim, each with seq, role and time. Rewound and erased
    turns are omitted. If not all turns fit, the last line explains how to read on. Content of
    turns is indented; only lines of memoird start at the first column.
    """
    is_error: bool = False
    """Whether the call failed. Then `text` explains the correction to the model."""
    messages_json: Json = ""
    """If a format was requested: the result as the provider's own array with one message or item.
    """

    @property
    def messages(self) -> Any:
        """`messages_json` as a value. None if it is empty."""
        return _parsed(self.messages_json)


@dataclass(slots=True)
class ContextReport:
    """How a window was built. All numbers are tokens unless stated otherwise."""

    input_budget: int = 0
    """Maximum size of the window."""
    tokens_total: int = 0
    """Size of the window."""
    tokens_by_block: TokensByBlock | None = None
    """Size of each block."""
    turns_included: int = 0
    """Number of turns in the window."""
    turns_omitted: int = 0
    """Number of turns of the history that are not in the window."""
    results_trimmed: int = 0
    """Number of tool results that were trimmed or superseded, and of turns shown as an excerpt.
    """
    stable_prefix_tokens: int = 0
    """Size of the prefix that is unchanged since the previous window."""
    cache_breakpoints: list[int] = field(default_factory=list)
    """Indices of the messages of `messages_json`, or of `turns` without a format, after which to
    set the provider's cache breakpoints. Counted from 0, ascending.
    """
    turn_tokens: list[int] = field(default_factory=list)
    """Size of each of `turns`."""
    token_factor: float = 0.0
    """Factor by which the token estimate was corrected."""
    token_margin: float = 0.0
    """Possible error of the count, as a share. It is large for small requests, because of the
    tokens that a provider may add to each request.
    """
    policy: WindowPolicy | None = None
    """The policy that selected the turns."""
    degraded: bool = False
    """Whether something did not work as configured. `notes` explain it."""
    notes: list[str] = field(default_factory=list)
    """Human-readable notes."""
    budget: Budget | None = None
    """The effective budget: the profile's with the call's overrides."""
    omissions: list[Omission] = field(default_factory=list)
    """Turns that the window omits or changes, in the order of the turns."""
    model: str = ""
    """The effective model profile."""
    summary: SummaryInfo | None = None
    """The summary in the window. Unset if there is none."""
    next_cut: NextCut | None = None
    """Forecast of the next cut. Set if `peek` was, except for the policy `sliding_window`."""


@dataclass(slots=True)
class NextCut:
    """Forecast of the next cut of a window. All numbers are tokens unless stated otherwise."""

    at_tokens: int = 0
    """Size above which the window is cut."""
    in_turns: int | None = None
    """Number of turns until then, if they are as long as the recent ones. Unset if there are no
    turns yet.
    """
    tokens_after: int = 0
    """Size of the window if it were cut now."""
    summary_ready: bool = False
    """Whether a summary is ready to replace the turns that the cut removes."""
    omissions: list[Omission] = field(default_factory=list)
    """Turns that a cut would now omit or change."""


@dataclass(slots=True)
class Omission:
    """A range of turns that a window omits or changes. The stored turns stay unchanged."""

    first_seq: int = 0
    """First turn of the range."""
    last_seq: int = 0
    """Last turn of the range."""
    reason: OmissionReason = OmissionReason.UNSPECIFIED
    """Why they are omitted or changed."""


@dataclass(slots=True)
class TokensByBlock:
    """Size of each block of a window in tokens."""

    system: int = 0
    """The system prompt, the tool schemas and `overhead_tokens`."""
    summary: int = 0
    """The summary of the oldest exchanges."""
    memories: int = 0
    """Recalled memories."""
    anchor: int = 0
    """The first user turn."""
    tail: int = 0
    """All other turns."""


@dataclass(slots=True)
class GetHistoryRequest:
    """Reads turns, oldest first."""

    session_id: str = ""
    """The session's id."""
    generation: str = ""
    """A generation's ULID. If empty, the live one; with a journal scope, the newest one if none is
    live.
    """
    scope: HistoryScope = HistoryScope.UNSPECIFIED
    """Which turns to read."""
    after_seq: int = 0
    """Return only turns after this seq."""
    limit: int = 0
    """Maximum number of turns, 1 to 1,000. Default 1,000. A response is also limited to 2 MiB
    including `messages_json`; a larger turn is returned alone.
    """
    last: int = 0
    """If set, return this many of the last turns instead of the first, up to 1,000. Above 2 MiB
    the oldest of them are omitted. Cannot be combined with `limit`.
    """
    before_seq: int = 0
    """Return only turns before this seq. 0 means no bound."""
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """The format of `messages_json` in the response. If unset, the response has `turns` only.
    """


@dataclass(slots=True)
class GetHistoryResponse:
    """Turns, oldest first."""

    turns: list[Turn] = field(default_factory=list)
    """The turns."""
    next_after_seq: int = 0
    """The `after_seq` of the next page. 0 on the last page, and if `last` was set."""
    messages_json: Json = ""
    """If a format was requested: the turns as the provider's own message array, without turns that
    have `removed` set. Messages appended in that format are returned as they were sent.
    """
    system: str = ""
    """The system turns at the start of the page, if MESSAGE_FORMAT_ANTHROPIC was requested, which
    has no system messages.
    """
    session: SessionInfo | None = None
    """The session, if the turns belong to its live generation."""
    previous_before_seq: int = 0
    """If `last` was set: the `before_seq` of the previous page, or 0 on the first page."""

    @property
    def messages(self) -> Any:
        """`messages_json` as a value. None if it is empty."""
        return _parsed(self.messages_json)


@dataclass(slots=True)
class GetSessionRequest:
    """Reads one live session."""

    session_id: str = ""
    """The session's id."""
    include_state: bool = False
    """Whether to return the state."""


@dataclass(slots=True)
class GetSessionResponse:
    """A live session."""

    session: SessionInfo | None = None
    """The session."""
    summary: SummaryInfo | None = None
    """The current summary. Unset if there is none."""
    summary_text: str = ""
    """Text of the summary, as windows show it."""


@dataclass(slots=True)
class ListSessionsRequest:
    """Lists live sessions and ended generations."""

    page_size: int = 0
    """Maximum number of sessions, up to 1,000. Default 100."""
    page_token: str = ""
    """The `next_page_token` of the previous page. Empty for the first page."""
    include_state: bool = False
    """Whether to return the states. Of an ended generation, the state at its end."""
    id_prefix: str = ""
    """Return only sessions whose id has this prefix."""
    subject: str = ""
    """If set, return only sessions of this subject."""
    labels: dict[str, str] = field(default_factory=dict)
    """Return only sessions that have all of these labels, or had them at their end."""
    updated_after: datetime | None = None
    """Return only live sessions with a `last_access`, and ended generations with an `ended_at`,
    between these two times. Precise to two milliseconds, and the bounds are included.
    """
    updated_before: datetime | None = None
    """See `updated_after`."""
    order: SessionOrder = SessionOrder.UNSPECIFIED
    """The order of the list."""
    state: SessionState = SessionState.UNSPECIFIED
    """Which sessions to return."""


@dataclass(slots=True)
class ListSessionsResponse:
    """A page of sessions."""

    sessions: list[SessionInfo] = field(default_factory=list)
    """The sessions. A page may have fewer than requested, or none, and not be the last: a call
    examines only some thousand sessions.
    """
    next_page_token: str = ""
    """Token for the next page, or empty on the last page. Valid only with the same parameters.
    """


@dataclass(slots=True)
class SearchTranscriptsRequest:
    """Searches turns."""

    query: str = ""
    """The words to search for; the first words of a long query are used. May be empty if another
    condition is set. Then all turns that match it are returned, newest first.
    """
    session_id: str = ""
    """Search only this session, in all its generations."""
    subject: str = ""
    """Search only sessions of this subject."""
    after: datetime | None = None
    """Search only turns at or after this time."""
    before: datetime | None = None
    """Search only turns before this time."""
    roles: list[Role] = field(default_factory=list)
    """If set, search only turns with these roles."""
    page_size: int = 0
    """Maximum number of hits, up to 100. Default 20. A page of long turns has fewer."""
    tool_name: str = ""
    """Search only turns that call this tool or contain its result."""
    context_turns: int = 0
    """Number of turns before and after each hit to return, up to 10. If they are too long in
    total, only the hit is returned.
    """
    page_token: str = ""
    """The `next_page_token` of the previous page. The other fields must be the same."""


@dataclass(slots=True)
class SearchTranscriptsResponse:
    """The hits, best first. A search by words returns at most the best 512 over all pages."""

    hits: list[TranscriptHit] = field(default_factory=list)
    """The hits."""
    next_page_token: str = ""
    """Token for the next page, or empty on the last page."""
    incomplete: bool = False
    """Whether some turns from before the call are not indexed yet, so that hits may be missing.
    """


@dataclass(slots=True)
class TranscriptHit:
    """A turn that was found."""

    snippet: str = ""
    """The text around the match."""
    session_id: str = ""
    """The session's id."""
    generation: str = ""
    """The generation's ULID."""
    seq: int = 0
    """Seq of the turn."""
    role: Role = Role.UNSPECIFIED
    """Author of the turn."""
    time: datetime | None = None
    """Time of the turn."""
    score: float = 0.0
    """Ranking score, higher is better. 0 if the query has no words. Comparable within one search
    only.
    """
    turns: list[Turn] = field(default_factory=list)
    """The turn and those around it, in order."""


@dataclass(slots=True)
class UpdateSessionRequest:
    """Changes a session."""

    session_id: str = ""
    """The session's id."""
    state_patch_json: Json = ""
    """An RFC 7396 merge patch of the state. A state is an object of at most `limits.state_bytes`
    (64 KiB) and 128 levels.
    """
    state_json: Json = ""
    """The complete new state, instead of `state_patch_json`."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels to set, as in AppendRequest: an empty value removes a label, others are unchanged.
    """
    ttl_class: str = ""
    """How long the session may be idle, as in AppendRequest."""
    keep_all: bool | None = None
    """Whether to keep the whole history, as in AppendRequest."""
    update_mask: list[str] = field(default_factory=list)
    """Fields to set, of `state_json`, `labels`, `ttl_class` and `keep_all`. If unset, all of them
    that have a value. A listed field without a value is reset.
    """
    expected_state_version: int | None = None
    """If set, fail with STALE_STATE_VERSION unless the state has this version."""
    allow_missing: bool = False
    """Whether to start the session if it is not live."""
    idempotency_key: str = ""
    """Idempotency key, as in AppendRequest. A repeat changes nothing."""

    @property
    def state_patch(self) -> Any:
        """`state_patch_json` as a value. None if it is empty."""
        return _parsed(self.state_patch_json)

    @property
    def state(self) -> Any:
        """`state_json` as a value. None if it is empty."""
        return _parsed(self.state_json)


@dataclass(slots=True)
class UpdateSessionResponse:
    """The session after a change."""

    session: SessionInfo | None = None
    """With its state. A change of the state increments `state_version` by one, even if the state
    stays the same. For a `duplicate`, the session as it is now, or only its `session_id` if it
    has ended since.
    """
    duplicate: bool = False
    """Whether this repeats an earlier `idempotency_key`. Then nothing was changed."""


@dataclass(slots=True)
class RewindSessionRequest:
    """Removes the newest turns of a session."""

    session_id: str = ""
    """The session's id."""
    after_seq: int = 0
    """The newest turn to keep, or 0 to keep none. At most the highest seq ever assigned
    (AFTER_SEQ_INVALID).
    """
    turns: list[Turn] = field(default_factory=list)
    """Up to 256 turns to append in their place. Cannot be combined with `messages_json`."""
    messages_json: Json = ""
    """The turns to append as the provider's own array of messages or items, in `format`."""
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """The format of `messages_json`."""
    expected_seq: int | None = None
    """If set, fail with STALE_SEQ unless `SessionInfo.last_seq` has this value. 0 means that the
    session has no turns. A rewind lowers `last_seq`, so of two rewinds with the same value one
    fails.
    """
    expected_generation: str = ""
    """If set, fail with STALE_GENERATION unless this is the live generation."""
    idempotency_key: str = ""
    """Idempotency key, as in AppendRequest. A repeat changes nothing."""

    @property
    def messages(self) -> Any:
        """`messages_json` as a value. None if it is empty."""
        return _parsed(self.messages_json)


@dataclass(slots=True)
class RewindSessionResponse:
    """The result of a rewind."""

    session: SessionInfo | None = None
    """The session after the rewind."""
    removed: list[Turn] = field(default_factory=list)
    """The turns removed from the history, oldest first. Above 2 MiB the oldest of them are
    omitted. For a `duplicate`, the turns removed by the first call. Turns that the history had
    already dropped are not included; `GetHistory` with HISTORY_SCOPE_JOURNAL returns all of
    them.
    """
    removed_turns: int = 0
    """Number of turns removed from the history."""
    first_seq: int = 0
    """Seq of the first appended turn, or `last_seq` plus one if none was appended."""
    last_seq: int = 0
    """Seq of the last appended turn, or the highest seq ever assigned if none was appended."""
    dropped_turns: int = 0
    """Number of oldest turns that the history dropped to make room for them."""
    duplicate: bool = False
    """Whether this repeats an earlier `idempotency_key`. Then nothing was changed, and the numbers
    are those of the first call.
    """
    removed_forgotten: bool = False
    """Set for a `duplicate` whose removed turns are no longer known, because there is no journal
    or retention has removed them.
    """


@dataclass(slots=True)
class UpdateTurnRequest:
    """Replaces the content of a turn."""

    session_id: str = ""
    """The session's id."""
    seq: int = 0
    """Seq of the turn to update. Fails with TURN_NOT_FOUND if the live generation has no such
    turn. Set either this or `client_id`.
    """
    turn: Turn | None = None
    """The new content. Its role, and the ids of its tool calls and results in order, must be those
    of the current turn. Its seq and pin are ignored. Without a time or a format, the current
    ones are kept. Without a `client_id`, the turn loses its `client_id`. Cannot be combined
    with `messages_json`.
    """
    expected_generation: str = ""
    """If set, fail with STALE_GENERATION unless this is the live generation."""
    client_id: str = ""
    """Instead of `seq`: the `client_id` of the turn to update. A rewound turn matches only if no
    other turn does. Fails with CLIENT_ID_NOT_UNIQUE if several turns have it, and with
    TURN_NOT_FOUND if none has. This reads the turns of the generation, while the cost of `seq`
    does not depend on their number.
    """
    idempotency_key: str = ""
    """Idempotency key, as in AppendRequest. A repeat changes nothing, also if the turn has been
    updated again or the session has ended since.
    """
    messages_json: Json = ""
    """The new content as the provider's own array of messages or items, in `format`. It must make
    exactly one turn.
    """
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """The format of `messages_json`."""

    @property
    def messages(self) -> Any:
        """`messages_json` as a value. None if it is empty."""
        return _parsed(self.messages_json)


@dataclass(slots=True)
class UpdateTurnResponse:
    """The updated turn."""

    turn: Turn | None = None
    """For a `duplicate`, the turn as it is now, or unset if it is no longer stored."""
    session: SessionInfo | None = None
    """The session after the update. For a `duplicate`, only its `session_id` if it has ended
    since.
    """
    duplicate: bool = False
    """Whether this repeats an earlier `idempotency_key`. Then nothing was changed."""


@dataclass(slots=True)
class CopySessionRequest:
    """Copies the turns of a session into another one."""

    session_id: str = ""
    """The session to copy."""
    generation: str = ""
    """The generation to copy, a ULID. If empty, the live one, else the newest in the journal.
    """
    through_seq: int = 0
    """The last turn to copy, or 0 for all turns."""
    target_session_id: str = ""
    """Id of the copy. It may equal `session_id` if that session is not live."""
    replace_existing: bool = False
    """Whether to end the target session first if it is live, as by ResetSession without hooks. If
    false, a live target fails with TARGET_LIVES.
    """
    idempotency_key: str = ""
    """Idempotency key in the target session, as in AppendRequest. A repeat copies nothing."""


@dataclass(slots=True)
class CopySessionResponse:
    """The result of a copy."""

    session: SessionInfo | None = None
    """The copy."""
    turns: int = 0
    """Number of copied turns."""
    dropped_turns: int = 0
    """Number of copied turns that the history of the copy dropped at once to stay within its
    limits.
    """
    duplicate: bool = False
    """Whether this repeats an earlier `idempotency_key`. Then nothing was copied, and the numbers
    are those of the first call.
    """


@dataclass(slots=True)
class CompactSessionRequest:
    """Replaces the oldest exchanges by a summary."""

    session_id: str = ""
    """The session's id."""
    keep_exchanges: int | None = None
    """Number of exchanges to keep verbatim, 0 to 1,000. Default 5, or fewer if they take more than
    30 % of the window.
    """


@dataclass(slots=True)
class CompactSessionResponse:
    """The result of a compaction."""

    session: SessionInfo | None = None
    """The session after the compaction."""
    first_seq: int = 0
    """First turn covered by this summary and not by the one before it, or 0 without a summary.
    """
    last_seq: int = 0
    """Last turn covered."""
    summary: str = ""
    """Text of the summary, as windows show it. Empty if there is none."""
    summary_info: SummaryInfo | None = None
    """Metadata of the summary."""
    tokens_before: int = 0
    """Estimated tokens of the newly covered turns and of the previous summary."""
    tokens_after: int = 0
    """Estimated tokens of the summary."""
    is_new: bool = False
    """False if there was nothing to summarize. Then the other fields describe the existing
    summary, if any.
    """


@dataclass(slots=True)
class UndoCompactionRequest:
    """Undoes the last compaction."""

    session_id: str = ""
    """The session's id."""


@dataclass(slots=True)
class UndoCompactionResponse:
    """The result of an undo."""

    session: SessionInfo | None = None
    """The session after the undo."""
    restored_turns: int = 0
    """Number of turns that windows can show again."""


@dataclass(slots=True)
class ResetSessionRequest:
    """Clears a live session."""

    session_id: str = ""
    """The session's id."""
    run_hooks: bool = False
    """Whether to run the hooks for the generation that ends."""
    expected_generation: str = ""
    """If set, fail with STALE_GENERATION unless this is the live generation."""
    idempotency_key: str = ""
    """Idempotency key, as in AppendRequest. A repeat changes nothing, also if the session has
    started again since. A call that fails because no session is live stores no key.
    """


@dataclass(slots=True)
class ResetSessionResponse:
    """A session after its reset."""

    session: SessionInfo | None = None
    """The session in its new generation. For a `duplicate`, the live session, or only its
    `session_id` if it has ended since.
    """
    ended_generation: str = ""
    """The generation that ended, a ULID."""
    duplicate: bool = False
    """Whether this repeats an earlier `idempotency_key`. Then nothing was changed, and
    `ended_generation` is that of the first call.
    """


@dataclass(slots=True)
class EndSessionRequest:
    """Ends the live generation."""

    session_id: str = ""
    """The session's id."""
    expected_generation: str = ""
    """If set, fail with STALE_GENERATION unless this is the live generation."""
    idempotency_key: str = ""
    """Idempotency key, as in AppendRequest. A repeat changes nothing, also if the session has
    started again since. A call that fails because no session is live stores no key.
    """


@dataclass(slots=True)
class EndSessionResponse:
    """The generation that ended."""

    session: SessionInfo | None = None
    """The session before it ended. For a `duplicate`, only its `session_id`, and the `generation`
    that the first call ended.
    """
    duplicate: bool = False
    """Whether this repeats an earlier `idempotency_key`. Then nothing was changed."""


@dataclass(slots=True)
class EraseSessionRequest:
    """Erases a session."""

    session_id: str = ""
    """The session's id."""
    generation: str = ""
    """Erase only this generation, a ULID. If empty, all generations up to now."""


@dataclass(slots=True)
class EraseSessionResponse:
    """An erasure in progress, or its result after a few seconds."""

    erasure: Erasure | None = None
    """The job and its progress."""


@dataclass(slots=True)
class EraseSubjectRequest:
    """Erases a subject."""

    subject: str = ""
    """The end user's id."""


@dataclass(slots=True)
class EraseSubjectResponse:
    """An erasure in progress, or its result after a few seconds."""

    erasure: Erasure | None = None
    """The job and its progress."""


@dataclass(slots=True)
class GetErasureRequest:
    """Asks for an erasure."""

    id: str = ""
    """The `id` of the erasure."""


@dataclass(slots=True)
class GetErasureResponse:
    """An erasure in progress, or its result."""

    erasure: Erasure | None = None
    """The job and its progress."""


@dataclass(slots=True)
class Erasure:
    """A job that erases a session, a generation or a subject."""

    id: str = ""
    """A ULID."""
    done: bool = False
    """Whether everything was removed, including from the disk's pages. See also `outside`."""
    erased: ErasedCounts | None = None
    """Data removed so far. After a crash during the job, the numbers of memories and commits may
    be too low.
    """
    outside: list[str] = field(default_factory=list)
    """Human-readable list of data that memoird cannot remove. It has a line for each generation
    passed to a hook, for each commit that still contains the data because of `erase:
    tombstone`, for each copy of an erased generation, for each generation that belonged to the
    subject until its subject was changed, and for the tenant's documents, if any, because they
    have no owner. Backups are never listed.
    """
    waits_for: str = ""
    """Human-readable reason why the job is waiting, or what it is doing outside the journal: a
    running backup, a hook that is processing a session, a reader of the journal, or the output
    of a hook; and whether that has failed and is retried. Empty if the job is not waiting, and
    on a cluster member that does not run erasures.
    """


@dataclass(slots=True)
class ErasedCounts:
    """Counts of data removed by an erasure."""

    turns: int = 0
    """Turns in the journal."""
    summaries: int = 0
    """Summaries in the journal."""
    keys: int = 0
    """Idempotency keys."""
    memories: int = 0
    """Memories, including older versions."""
    deliveries: int = 0
    """Pending hook deliveries that were cancelled."""
    commits: int = 0
    """Checkpoint commits that were rewritten without the data, or dropped."""


@dataclass(slots=True)
class WatchEventsRequest:
    """Selects the events to watch."""

    after_cursor: str = ""
    """Send only events after this `cursor`, which may come from any daemon that shares the
    journal. If empty, from now on; events of other cluster members from shortly before may be
    sent as well. `1-0` is before all events that the buffer still has. Fails with
    CURSOR_INVALID if it is malformed or combined with `all_tenants`.
    """
    all_tenants: bool = False
    """Whether to send the events of all tenants, from now on. Requires a key with the role
    `admin`.
    """


@dataclass(slots=True)
class WatchEventsResponse:
    """An event, or the number of events that were missed."""

    event: Event | None = None
    """The event. Unset if events were missed."""
    missed: int = 0
    """Number of events that left the buffer before they could be sent. The buffer keeps the last
    4,096 events of a tenant.
    """
    missed_tenant: str = ""
    """The tenant of the missed events."""
    cursor: str = ""
    """Position after this response, for `after_cursor`. Empty with `all_tenants`."""


@dataclass(slots=True)
class Event:
    """An event of a session."""

    event_id: int = 0
    """Sequence number of the tenant's events. Each start of the daemon continues at a higher
    number. Cluster members number their events independently. The events of one daemon are in
    order. If several daemons served a session, `seq` gives the order.
    """
    time: datetime | None = None
    """When it happened."""
    tenant: str = ""
    """The tenant's id."""
    session_id: str = ""
    """The session's id."""
    generation: str = ""
    """The generation's ULID."""
    created: SessionCreated | None = None
    """A generation started."""
    appended: TurnsAppended | None = None
    """Turns were appended."""
    rewound: SessionRewound | None = None
    """Turns were rewound."""
    turn_updated: TurnUpdated | None = None
    """The content of a turn was replaced."""
    ended: SessionEnded | None = None
    """The generation ended."""
    erased: SessionErased | None = None
    """All content of the generation was erased."""
    compacted: SessionCompacted | None = None
    """A summary replaced the oldest exchanges."""
    compaction_failed: CompactionFailed | None = None
    """No summary could be made. Nothing was changed."""
    compaction_undone: CompactionUndone | None = None
    """A summary was undone."""
    hook_delivered: HookDelivered | None = None
    """A hook accepted the generation."""
    hook_failed: HookFailed | None = None
    """A hook failed."""
    learned: FactsLearned | None = None
    """Facts were extracted from turns and stored."""
    extraction_failed: ExtractionFailed | None = None
    """The extraction of facts failed."""


@dataclass(slots=True)
class SessionCreated:
    """A generation started."""


@dataclass(slots=True)
class TurnsAppended:
    """Turns were appended."""

    first_seq: int = 0
    """Seq of the first of them."""
    last_seq: int = 0
    """Seq of the last of them."""
    dropped_turns: int = 0
    """Number of oldest turns that the history dropped to stay within its limits."""
    client_ids: list[str] = field(default_factory=list)
    """Client ids of the turns in order, up to 1 KiB."""


@dataclass(slots=True)
class SessionRewound:
    """Turns were rewound."""

    after_seq: int = 0
    """The newest turn that was kept."""
    through_seq: int = 0
    """The highest seq assigned before the rewind."""


@dataclass(slots=True)
class TurnUpdated:
    """The content of a turn was replaced."""

    seq: int = 0
    """Seq of the turn."""


@dataclass(slots=True)
class SessionEnded:
    """A generation ended."""

    reason: EndReason = EndReason.UNSPECIFIED
    """Why it ended."""


@dataclass(slots=True)
class SessionErased:
    """All content of a generation was erased."""


@dataclass(slots=True)
class SessionCompacted:
    """A summary replaced the oldest exchanges."""

    trigger: CompactionTrigger = CompactionTrigger.UNSPECIFIED
    """Why it was compacted."""
    summary: SummaryInfo | None = None
    """Metadata of the summary. `made_at` is unset."""
    tokens_before: int = 0
    """Estimated tokens of the newly covered turns and of the previous summary."""
    tokens_after: int = 0
    """Estimated tokens of the summary."""


@dataclass(slots=True)
class CompactionFailed:
    """No summary could be made."""

    trigger: CompactionTrigger = CompactionTrigger.UNSPECIFIED
    """Why it was attempted."""
    reason: str = ""
    """Stable name of the reason, such as `timeout`. New reasons may be added."""
    breaker: BreakerState = BreakerState.UNSPECIFIED
    """State of the session's circuit breaker after the failure."""
    error: str = ""
    """Human-readable description. For keys without the role `admin`, set only if it quotes no
    reply of a summarizer.
    """


@dataclass(slots=True)
class CompactionUndone:
    """A summary was undone."""

    number: int = 0
    """Number of the summary."""


@dataclass(slots=True)
class HookDelivered:
    """A hook accepted a generation."""

    hook: str = ""
    """The hook's name."""
    delivery_id: str = ""
    """Id of the delivery, as in `HookDelivery`."""
    tries: int = 0
    """Number of tries, including this one."""


@dataclass(slots=True)
class HookFailed:
    """A hook failed."""

    hook: str = ""
    """The hook's name."""
    delivery_id: str = ""
    """Id of the delivery, as in `HookDelivery`."""
    tries: int = 0
    """Number of tries, including this one."""
    gave_up: bool = False
    """Whether the delivery was abandoned."""
    error: str = ""
    """Human-readable description. Set only for keys with the role `admin`."""


@dataclass(slots=True)
class FactsLearned:
    """Facts were extracted from turns and stored."""

    model: str = ""
    """The model's name."""
    first_seq: int = 0
    """The first turn shown to the model."""
    through_seq: int = 0
    """The last turn shown to the model."""
    accepted: int = 0
    """Number of facts that were stored."""
    rejected: int = 0
    """Number of facts that were rejected."""
    tokens: int = 0
    """Tokens of the prompt and the reply."""


@dataclass(slots=True)
class ExtractionFailed:
    """The extraction of facts failed."""

    reason: str = ""
    """Stable name of the reason, such as `timeout`. New reasons may be added."""
    gave_up: bool = False
    """Whether the turns are skipped from now on. If false, the extraction is tried again."""
    error: str = ""
    """Human-readable description. Set only for keys with the role `admin`."""
