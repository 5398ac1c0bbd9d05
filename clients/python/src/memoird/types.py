"""What calls take and give: a dataclass for each message of the contract.

Generated from the contract by generate.py."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

Json = Any
"""JSON: a text, or a value that becomes one."""
Bytes = bytes


class Open(IntEnum):
    """An enumeration to which newer daemons may add."""

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
    "Budget",
    "CommitExtractionRequest",
    "CommitExtractionResponse",
    "CompactSessionRequest",
    "CompactSessionResponse",
    "CompactionInfo",
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
    "Erased",
    "Event",
    "ExtractedMemory",
    "ForgetRequest",
    "ForgetResponse",
    "GetContextRequest",
    "GetContextResponse",
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
    "PatchStateRequest",
    "PatchStateResponse",
    "Polarity",
    "PutDocumentRequest",
    "PutDocumentResponse",
    "RecallHit",
    "RecallMode",
    "RecallRequest",
    "RecallResponse",
    "ReindexMemoriesRequest",
    "ReindexMemoriesResponse",
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
    "SessionInfo",
    "SessionOrder",
    "SlidingWindow",
    "SubjectMemories",
    "SummaryInfo",
    "Thinking",
    "TokenBudget",
    "TokensByBlock",
    "ToolResult",
    "ToolUse",
    "TranscriptHit",
    "Turn",
    "UndoCompactionRequest",
    "UndoCompactionResponse",
    "UpdateMemoryRequest",
    "UpdateMemoryResponse",
    "UpdateTurnRequest",
    "UpdateTurnResponse",
    "Visibility",
    "WatchEventsRequest",
    "WatchEventsResponse",
    "WindowPolicy",
]


class Role(Open):
    """Who contributed a turn."""

    UNSPECIFIED = 0
    """Not a role: a turn that says so is refused with INVALID_ARGUMENT."""
    USER = 1
    """The person, or the program, that talks to the bot."""
    ASSISTANT = 2
    """The model."""
    TOOL = 3
    """A tool that the model called."""
    SYSTEM = 4
    """Instructions of the bot's author."""


class MessageFormat(Open):
    """The shape of a provider's own message array."""

    UNSPECIFIED = 0
    """No format: only valid where no `messages_json` is given."""
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
    """Nothing touched it for `session_ttl`."""
    EVICTED = 2
    """A cap was reached and it was the oldest-idle session."""
    ENDED = 3
    """`EndSession` was called, or an erasure ended it."""
    RESET = 4
    """`ResetSession` was called, or a copy took its place."""
    SHUTDOWN = 5
    """The daemon stopped and keeps no journal (durability `off`)."""


class MemoryKind(Open):
    """What a memory is about. There are no others."""

    UNSPECIFIED = 0
    """Not a kind: refused."""
    USER = 1
    """Who the subject is: role, preferences, circumstances."""
    FEEDBACK = 2
    """How the subject wants things done: corrections and confirmations."""
    PROJECT = 3
    """What goes on: work, decisions, dates."""
    REFERENCE = 4
    """Where to find something."""


class Visibility(Open):
    """Who may recall a memory."""

    UNSPECIFIED = 0
    """As PRIVATE; in an update: as it is."""
    PRIVATE = 1
    """Its subject only. Always so for MEMORY_KIND_USER."""
    TEAM = 2
    """Any subject of the tenant."""


class Polarity(Open):
    """Which way feedback points."""

    UNSPECIFIED = 0
    """Neither."""
    CORRECTION = 1
    """ "Not like that." """
    CONFIRMATION = 2
    """ "Yes, like that." """


class RecallMode(Open):
    """How a recall searches."""

    UNSPECIFIED = 0
    """HYBRID where an embedder is configured, else LEXICAL."""
    HYBRID = 1
    """By words and by meaning, fused. Without an embedder, or while it does not answer, by words
    only, and `degraded` says so.
    """
    LEXICAL = 2
    """By words."""
    VECTOR = 3
    """By meaning. Refused without an embedder."""


class MemoryOrigin(Open):
    """Who made a memory."""

    UNSPECIFIED = 0
    """The bot, by Remember."""
    EXTRACTION = 1
    """CommitExtraction."""
    IMPORT = 2
    """ImportMemories, of one whose origin was not told."""


class NearDuplicate(Open):
    """What is done with a fact that a memory says already, in other letters."""

    UNSPECIFIED = 0
    """As MERGE."""
    MERGE = 1
    """The memory takes it in."""
    REFUSE = 2
    """It is refused with MEMORY_DUPLICATE, and the error names the memory."""
    KEEP = 3
    """It becomes a memory of its own."""


class RememberOutcome(Open):
    """What became of a fact."""

    UNSPECIFIED = 0
    """Not told."""
    CREATED = 1
    """It is new."""
    REINFORCED = 2
    """It was there to the letter, and counts once more."""
    MERGED = 3
    """One that says the same in other letters took it in."""
    RECALLED = 4
    """It is what a Recall just told this session: no new fact, and nothing changed."""
    REPLACED = 5
    """The memory of its `external_key` is this now."""


class ConflictDifference(Open):
    """In what two memories of one matter differ."""

    UNSPECIFIED = 0
    """Not told."""
    NUMBERS = 1
    """Numbers, amounts or dates."""
    NEGATION = 2
    """One of them denies."""
    WORDS = 3
    """A word in the place of another."""


class OmissionReason(Open):
    """Why a window leaves turns out, or shows them in other words."""

    UNSPECIFIED = 0
    """None of those below."""
    DROPPED = 1
    """They left the history, first in first out."""
    CUT = 2
    """They are before the cut."""
    SALIENCE = 3
    """They were the least important of the middle."""
    SUPERSEDED = 4
    """A later call of the same tool with the same arguments has a newer result."""
    TRIMMED = 5
    """A long result was trimmed to its head and tail."""
    EXCERPT = 6
    """The first user turn did not fit, and is an excerpt."""
    SUMMARIZED = 7
    """The summary stands for them."""


class HistoryScope(Open):
    """Which turns of a session to read."""

    UNSPECIFIED = 0
    """The same as HISTORY_SCOPE_LIVE."""
    LIVE = 1
    """What first in, first out keeps of the live generation."""
    JOURNAL = 2
    """All turns of a generation, of an ended one too, until `journal.retention`; those that were
    taken back with `removed`.
    """
    LONGEST = 3
    """As HISTORY_SCOPE_JOURNAL where there is a journal, but without turns that were taken back;
    else as HISTORY_SCOPE_LIVE.
    """


class SessionOrder(Open):
    """The order of a list of sessions."""

    UNSPECIFIED = 0
    """The same as SESSION_ORDER_NEWEST."""
    NEWEST = 1
    """Most recently touched first."""
    OLDEST = 2
    """Longest untouched first."""
    ID = 3
    """By id, in the order of its bytes."""


@dataclass(slots=True)
class Turn:
    """One contribution by one role. At most `limits.turn_bytes` encoded (20 MiB unless configured,
    less with little memory) and `limits.parts_per_turn` parts (128).
    """

    role: Role = Role.UNSPECIFIED
    """Who contributed it."""
    parts: list[Part] = field(default_factory=list)
    """What it says, in order. At least one part."""
    timestamp: datetime | None = None
    """When it was said. Absent: when it arrived. Years 1970 to 9999."""
    seq: int = 0
    """Its place in its generation, from 1. Set by memoird; ignored on input."""
    salience: float | None = None
    """How important the bot finds it, 0 to 1."""
    pinned: bool = False
    """Keep it whatever is dropped. At most `limits.pinned_turns` (10) and `limits.pinned_bytes`
    (256 KiB) a generation; they count in the caps.
    """
    metadata: dict[str, str] = field(default_factory=dict)
    """Free labels of the bot. At most 64 entries and 16 KiB."""
    extra_json: Json = ""
    """Fields of the provider's message that memoird has no use for: a JSON object, kept and given
    back. Counts in the turn's bytes.
    """
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """Whose fields the `extra_json` of the turn and of its parts are: the format that
    `messages_json` brought it in, or what the bot says. Given back to that provider only;
    without a format, to any.
    """
    removed: bool = False
    """True where `RewindSession` took it back: only the journal still has it. Set by memoird;
    ignored on input.
    """
    client_id: str = ""
    """The client's own id of the message that this is, or is a part of; at most 256 bytes. memoird
    gives it back and never sends it to a provider; several turns may have the same.
    """
    client_json: Json = ""
    """What else the client wants to have back with the turn, such as the message as its framework
    has it: JSON of any kind, at most `limits.client_json_bytes` (256 KiB) and 128 levels. Kept
    to the byte, counted in the turn's bytes, and never sent to a provider.
    """

    @property
    def extra(self) -> Any:
        """`extra_json` as a value; None where it is empty."""
        return _parsed(self.extra_json)

    @property
    def client(self) -> Any:
        """`client_json` as a value; None where it is empty."""
        return _parsed(self.client_json)


@dataclass(slots=True)
class Part:
    """A piece of a turn."""

    text: str | None = None
    """Plain text. May be empty."""
    tool_use: ToolUse | None = None
    """A call of a tool by the assistant."""
    tool_result: ToolResult | None = None
    """What a tool answered."""
    media: Media | None = None
    """An image, a document, a sound."""
    thinking: Thinking | None = None
    """The model's reasoning."""
    extra_json: Json = ""
    """Fields of the provider's part that memoird has no use for: a JSON object, kept and given
    back. Counts in the turn's bytes.
    """

    @property
    def extra(self) -> Any:
        """`extra_json` as a value; None where it is empty."""
        return _parsed(self.extra_json)


@dataclass(slots=True)
class ToolUse:
    """A call of a tool. Only in turns of ROLE_ASSISTANT."""

    id: str = ""
    """The provider's id of the call, 1 to 4096 bytes. It may be used again in one generation once
    its call has its result.
    """
    name: str = ""
    """The tool's name, 1 to 256 bytes."""
    input_json: Json = ""
    """The arguments, as the model wrote them; kept to the byte."""

    @property
    def input(self) -> Any:
        """`input_json` as a value; None where it is empty."""
        return _parsed(self.input_json)


@dataclass(slots=True)
class ToolResult:
    """What a tool answered. Only in turns of ROLE_TOOL and ROLE_USER."""

    tool_use_id: str = ""
    """The call it answers: the latest one of this id that has no result yet. In turns of
    MESSAGE_FORMAT_OPENAI_RESPONSES it may be one that the generation never had, such as an
    approval after the session expired: windows, and HISTORY_SCOPE_LIVE in a provider's format,
    show it as a note.
    """
    content: str = ""
    """The answer as text; kept to the byte."""
    parts: list[Part] = field(default_factory=list)
    """The answer as rich content: text and media parts only."""
    is_error: bool = False
    """True when the tool failed."""


@dataclass(slots=True)
class Media:
    """An image, a document, a sound."""

    media_type: str = ""
    """The IANA media type, such as `image/png`. At most 256 bytes; may be empty where the
    provider's message did not say.
    """
    data: bytes | None = None
    """The content itself."""
    uri: str | None = None
    """Where the provider finds it: a URL or a provider's file id."""
    name: str = ""
    """A name for people. At most 1,024 bytes."""


@dataclass(slots=True)
class Thinking:
    """The model's reasoning, kept with the tool use that it led to."""

    text: str = ""
    """The reasoning; for a redacted one, the provider's opaque data."""
    signature: str = ""
    """The provider's signature over it."""
    redacted: bool = False
    """True when the provider hid the reasoning."""


@dataclass(slots=True)
class ModelUsage:
    """What the provider charged for a call. The request has `input_tokens`, `cache_read_tokens`
    and `cache_creation_tokens` together.
    """

    model: str = ""
    """The model's name, at most 256 bytes."""
    input_tokens: int = 0
    """Tokens of the request, as the provider says them."""
    output_tokens: int = 0
    """Tokens of the reply."""
    cache_read_tokens: int = 0
    """Tokens of the request that were read from the provider's cache and that `input_tokens` does
    not hold: Anthropic's `cache_read_input_tokens`. OpenAI's `input_tokens` and `prompt_tokens`
    hold its cached tokens: 0 there.
    """
    cache_creation_tokens: int = 0
    """Tokens of the request that were written to the provider's cache and that `input_tokens` does
    not hold: Anthropic's `cache_creation_input_tokens`. 0 where `input_tokens` holds them.
    """


@dataclass(slots=True)
class Budget:
    """The tokens of a model call. A window may use `context_window - max_reply_tokens -
    safety_headroom - tool_result_headroom`.
    """

    context_window: int | None = None
    """All tokens the model takes, request and reply. If a call sets it, the reserves that the call
    does not set are scaled to this window instead of taken from the profile.
    """
    max_reply_tokens: int | None = None
    """Tokens kept free for the reply."""
    safety_headroom: int | None = None
    """Tokens kept free against errors of counting."""
    tool_result_headroom: int | None = None
    """Tokens kept free for the next tool results."""


@dataclass(slots=True)
class WindowPolicy:
    """How a window chooses its turns."""

    sliding_window: SlidingWindow | None = None
    """The last turns, and nothing else."""
    head_tail: HeadTail | None = None
    """System prompt, anchor and the last turns."""
    token_budget: TokenBudget | None = None
    """As many of the last turns as the budget holds."""
    salience: Salience | None = None
    """Drops the least important units of the middle first."""


@dataclass(slots=True)
class SlidingWindow:
    """The last turns, and nothing else: gives up the anchor and the stable prefix."""

    turns: int = 0
    """How many turns, at least 1."""


@dataclass(slots=True)
class HeadTail:
    """System prompt, anchor and the last turns."""

    turns: int = 0
    """How many turns of the tail; 0: as many as the budget holds."""


@dataclass(slots=True)
class TokenBudget:
    """As many of the last turns as the budget holds."""


@dataclass(slots=True)
class Salience:
    """Drops the least important units of the middle first."""


@dataclass(slots=True)
class Document:
    """A document."""

    namespace: list[str] = field(default_factory=list)
    """The parts of its namespace."""
    key: str = ""
    """Its key, by which it is found in its namespace."""
    json: Json | None = None
    """JSON of any kind, as it was put."""
    bytes: Bytes | None = None
    """Bytes."""
    version: int = 0
    """From 1, and one more with each Put. One that is put again after it was removed, or has
    expired, begins at 1.
    """
    created_at: datetime | None = None
    """When its version 1 was put."""
    updated_at: datetime | None = None
    """When this version was put."""
    expires_at: datetime | None = None
    """From when on it is not there; absent: never."""
    size: int = 0
    """Bytes of its value."""

    @property
    def value(self) -> Any:
        """`json` as a value; None where it is empty."""
        return _parsed(self.json)


@dataclass(slots=True)
class GetDocumentRequest:
    """Asks for a document."""

    namespace: list[str] = field(default_factory=list)
    """The parts of its namespace."""
    key: str = ""
    """Its key."""
    ttl: timedelta | None = None
    """From this read on it lives so long, where it expires at all; its version stays. At most ten
    years; absent: as before.
    """


@dataclass(slots=True)
class GetDocumentResponse:
    """The document."""

    document: Document | None = None
    """With its value."""


@dataclass(slots=True)
class PutDocumentRequest:
    """A document to be stored."""

    namespace: list[str] = field(default_factory=list)
    """The parts of its namespace: at least one."""
    key: str = ""
    """Its key."""
    json: Json | None = None
    """JSON of any kind."""
    bytes: Bytes | None = None
    """Bytes."""
    expected_version: int | None = None
    """The version that is there; 0: none is, so that it is made, and never replaced. Otherwise the
    call is refused (STALE_VERSION), and the error has the version as `version`. Absent:
    whatever is there.
    """
    ttl: timedelta | None = None
    """How long it lives from now on: at most ten years. Absent: until it is removed."""

    @property
    def value(self) -> Any:
        """`json` as a value; None where it is empty."""
        return _parsed(self.json)


@dataclass(slots=True)
class PutDocumentResponse:
    """The document as it is now."""

    document: Document | None = None
    """Without its value."""


@dataclass(slots=True)
class DeleteDocumentRequest:
    """Names a document that is to go."""

    namespace: list[str] = field(default_factory=list)
    """The parts of its namespace."""
    key: str = ""
    """Its key."""
    expected_version: int | None = None
    """As in PutDocumentRequest."""


@dataclass(slots=True)
class DeleteDocumentResponse:
    """What was removed."""

    deleted: bool = False
    """True where there was one."""


@dataclass(slots=True)
class DeleteDocumentsRequest:
    """Names documents that are to go."""

    namespace_prefix: list[str] = field(default_factory=list)
    """Those in this namespace and in all below it: at least one part."""
    exact_namespace: bool = False
    """True: only those in exactly this namespace."""
    key_prefix: str = ""
    """Only those whose keys begin so."""
    key_from: str = ""
    """Only those with this key or one behind it."""
    key_before: str = ""
    """Only those with a key before this one; empty: all."""
    erase: bool = False
    """True: what was removed is cleared from the disk's pages, too, before the call answers where
    that is soon done. It reads the tenant's whole file. False: SQLite overwrites it in the file
    with the pages' next write, and copies stay in unused space until something is forgotten or
    erased. In a database (`journal.postgres`) it changes nothing: `VACUUM` clears the pages.
    """


@dataclass(slots=True)
class DeleteDocumentsResponse:
    """What was removed."""

    deleted: int = 0
    """So many documents."""
    erased: bool = False
    """True when nothing of them is left on the disk's pages, or, in a database, as rows. With
    `erase`, false says that it is done in the background.
    """


@dataclass(slots=True)
class ListDocumentsRequest:
    """Asks for documents."""

    namespace_prefix: list[str] = field(default_factory=list)
    """Those in this namespace and in all below it; empty: all."""
    exact_namespace: bool = False
    """True: only those in exactly this namespace."""
    key_prefix: str = ""
    """Only those whose keys begin so."""
    key_from: str = ""
    """Only those with this key or one behind it."""
    key_before: str = ""
    """Only those with a key before this one; empty: all."""
    filter_json: Json = ""
    """Only those whose JSON is an object that fits: a JSON object whose members name members of
    the document and say what those are: a value, which they equal; an object of operators,
    `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`, which all hold; or another object, whose members
    are looked at in the same way. What is not there is null. Numbers are compared with numbers,
    texts with texts by their characters; all else is neither greater nor less. Up to 16 KiB, 64
    conditions and 8 levels; empty: all.
    """
    descending: bool = False
    """True: in the opposite order, the last one first."""
    without_values: bool = False
    """True: without their values."""
    page_size: int = 0
    """At most so many: up to 1,000; 0: 100. A page of large documents has fewer, and so has one
    with a filter, which may have none: `next_page_token` says whether there are more.
    """
    page_token: str = ""
    """The next_page_token of the page before; the rest of the request has to be the same."""

    @property
    def filter(self) -> Any:
        """`filter_json` as a value; None where it is empty."""
        return _parsed(self.filter_json)


@dataclass(slots=True)
class ListDocumentsResponse:
    """A page of documents."""

    documents: list[Document] = field(default_factory=list)
    """The documents."""
    next_page_token: str = ""
    """Asks for the next page; empty on the last one."""


@dataclass(slots=True)
class ListNamespacesRequest:
    """Asks for namespaces."""

    prefix: list[str] = field(default_factory=list)
    """Only those that begin with these parts. The part `*` stands for any one."""
    suffix: list[str] = field(default_factory=list)
    """Only those that end with these parts. The part `*` stands for any one."""
    max_depth: int = 0
    """Only the first so many parts of each are told, and each once; 0: all."""
    page_size: int = 0
    """At most so many: up to 1,000; 0: 100. A page may have fewer, or none: `next_page_token` says
    whether there are more.
    """
    page_token: str = ""
    """The next_page_token of the page before; the rest of the request has to be the same."""


@dataclass(slots=True)
class ListNamespacesResponse:
    """A page of namespaces."""

    namespaces: list[Namespace] = field(default_factory=list)
    """The namespaces."""
    next_page_token: str = ""
    """Asks for the next page; empty on the last one."""


@dataclass(slots=True)
class Namespace:
    """A namespace, or the beginning of some."""

    parts: list[str] = field(default_factory=list)
    """Its parts."""


@dataclass(slots=True)
class BatchDocumentsRequest:
    """Operations that are done together."""

    operations: list[DocumentOperation] = field(default_factory=list)
    """Up to 256."""


@dataclass(slots=True)
class DocumentOperation:
    """One operation of several."""

    get: GetDocumentRequest | None = None
    """As GetDocument; one that is not there is no refusal."""
    put: PutDocumentRequest | None = None
    """As PutDocument."""
    delete: DeleteDocumentRequest | None = None
    """As DeleteDocument."""


@dataclass(slots=True)
class BatchDocumentsResponse:
    """What came of them."""

    results: list[DocumentResult] = field(default_factory=list)
    """Of each operation, in their order. Values that are read have up to 16 MiB together
    (DOCUMENTS_TOO_LARGE).
    """


@dataclass(slots=True)
class DocumentResult:
    """What came of one operation."""

    document: Document | None = None
    """Of a Get: the document, where it is there. Of a Put: the document without its value."""
    deleted: bool = False
    """Of a Delete: true where there was one."""


@dataclass(slots=True)
class MemorySource:
    """The turns that a memory comes from."""

    session_id: str = ""
    """The bot's own chat id."""
    generation: str = ""
    """Which life of it; empty: the live one, else the newest."""
    seqs: list[int] = field(default_factory=list)
    """The turns. At most 256."""


@dataclass(slots=True)
class Memory:
    """One promoted fact."""

    id: str = ""
    """Its id: a ULID."""
    subject: str = ""
    """Whose it is."""
    kind: MemoryKind = MemoryKind.UNSPECIFIED
    """What it is about."""
    visibility: Visibility = Visibility.UNSPECIFIED
    """Who may recall it."""
    polarity: Polarity = Polarity.UNSPECIFIED
    """Which way it points; only of MEMORY_KIND_FEEDBACK."""
    content: str = ""
    """The fact, in words."""
    tags: list[str] = field(default_factory=list)
    """Labels, sorted."""
    importance: float = 0.0
    """From 0 to 1."""
    source: MemorySource | None = None
    """Where it comes from."""
    observed_at: datetime | None = None
    """When it was so."""
    created_at: datetime | None = None
    """When it was made."""
    updated_at: datetime | None = None
    """When it was last changed, reinforced or merged into."""
    expires_at: datetime | None = None
    """From when on it is not recalled any more."""
    superseded_by: str = ""
    """The id of the one that took its place: then it is history, and not recalled."""
    reinforced: int = 0
    """How often it was said again."""
    recall_count: int = 0
    """How often it was recalled."""
    last_recalled_at: datetime | None = None
    """When it was last recalled."""
    pinned: bool = False
    """True: it stands first in the manifest."""
    pinned_by_dream: bool = False
    """True: a dream sweep pinned it, and may take the pin away."""
    origin: MemoryOrigin = MemoryOrigin.UNSPECIFIED
    """Who made it."""
    external_key: str = ""
    """The bot's own name for it among the memories of its subject."""
    metadata_json: Json = ""
    """What the bot notes of it: a JSON object, as it was sent; empty: nothing."""
    metadata: dict[str, str] = field(default_factory=dict)
    """The members of `metadata_json` that are texts. An import takes them where `metadata_json` is
    empty.
    """


@dataclass(slots=True)
class RememberRequest:
    """Promotes a fact."""

    subject: str = ""
    """Whose it is. Empty with a `source`: the subject of that session."""
    kind: MemoryKind = MemoryKind.UNSPECIFIED
    """What it is about."""
    content: str = ""
    """The fact, in words: up to `long_term.content_bytes` (8 KiB). Empty with `source.seqs`: the
    text of these turns.
    """
    tags: list[str] = field(default_factory=list)
    """Labels: up to 32 of up to 128 bytes."""
    importance: float | None = None
    """From 0 to 1; absent: 0.5."""
    source: MemorySource | None = None
    """The session it was said in. Its turns have to be there."""
    observed_at: datetime | None = None
    """When it was so; absent: when the last turn of `source.seqs` was said, else now."""
    expires_at: datetime | None = None
    """From when on it is not recalled any more."""
    supersedes_id: str = ""
    """The id of a memory of this subject whose place it takes."""
    pinned: bool = False
    """True: it stands first in the manifest."""
    polarity: Polarity = Polarity.UNSPECIFIED
    """Which way it points; only of MEMORY_KIND_FEEDBACK."""
    idempotency_key: str = ""
    """The same key with the same request is done once, and answered as the first time, for 24
    hours. At most 256 bytes.
    """
    visibility: Visibility = Visibility.UNSPECIFIED
    """Who may recall it."""
    near_duplicate: NearDuplicate = NearDuplicate.UNSPECIFIED
    """What is done when a memory says it already, in other letters."""
    external_key: str = ""
    """The bot's own name for it: up to 256 bytes. Where a current memory of the subject has it,
    that memory becomes what is sent, under its id (REPLACED), and what it said before becomes
    history. Otherwise it is a memory of its own, whatever others say.
    """
    metadata_json: Json = ""
    """What the bot notes of it: a JSON object of up to 4 KiB, by which Recall and ListMemories can
    filter. It is not searched.
    """
    vector: list[float] = field(default_factory=list)
    """Its vector, where the bot makes vectors itself: as many dimensions as all others have, up to
    4,096. Where an embedder is configured it has to be of that one's model.
    """
    keep_apart: bool = False
    """True: it becomes a memory of its own, also where another one says it to the letter, and
    stays one. For what several authors say in the same words.
    """
    metadata: dict[str, str] = field(default_factory=dict)
    """What the bot notes of it, where all of it is texts: the plain form of `metadata_json`. Send
    one of both.
    """


@dataclass(slots=True)
class RememberResponse:
    """The memory that now says it."""

    memory: Memory | None = None
    """The memory."""
    outcome: RememberOutcome = RememberOutcome.UNSPECIFIED
    """What became of the fact."""
    redacted: int = 0
    """What looked like secrets and was taken out before it was stored."""


@dataclass(slots=True)
class RecallRequest:
    """Asks for memories."""

    query: str = ""
    """What is looked for, in words: up to 4 KiB. In GetContext it may be empty: then it is the
    exchange under way, the last request of the user and what was said since.
    """
    subjects: list[str] = field(default_factory=list)
    """Whose memories: up to 16. Empty: the subject of `session_id`; without one only those that
    all subjects may recall.
    """
    kinds: list[MemoryKind] = field(default_factory=list)
    """Only of these kinds; empty: of all."""
    tags: list[str] = field(default_factory=list)
    """Only those with all of these labels. Of a subject's memories that have one, the newest
    65,536 are looked at.
    """
    after: datetime | None = None
    """Only those observed at or after this moment."""
    before: datetime | None = None
    """Only those observed before this moment."""
    limit: int = 0
    """At most so many: up to 100; 0: 8."""
    mode: RecallMode = RecallMode.UNSPECIFIED
    """How to search."""
    session_id: str = ""
    """The session that is told: what it recalls is not a new fact when it comes back."""
    explain: bool = False
    """True: each hit has the parts of its score, and the recall leaves no trace: it is for people
    who look, and no use of a memory.
    """
    without_reranker: bool = False
    """True: no reranker is asked, where one is configured."""
    metadata_filter_json: Json = ""
    """Only those whose `metadata_json` fits, as `filter_json` of ListDocuments says it. Of a
    subject's memories that have any, the newest 65,536 are looked at.
    """
    subject_prefix: str = ""
    """Also those of all subjects whose ids begin so: up to 64 of them (SUBJECTS_TOO_MANY)."""
    vector: list[float] = field(default_factory=list)
    """The query's vector, where the bot makes vectors itself. Then `query` may be empty."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Only those whose metadata has all of these texts. Up to 64 of together 16 KiB. Beside
    `metadata_filter_json` both have to fit.
    """
    min_relevance: float | None = None
    """Minimum `relevance` of a hit, 0 to 1. Default: in GetContext a floor that drops unrelated
    memories, in Recall none.
    """

    @property
    def metadata_filter(self) -> Any:
        """`metadata_filter_json` as a value; None where it is empty."""
        return _parsed(self.metadata_filter_json)


@dataclass(slots=True)
class ScoreParts:
    """The factors of a score, which is (`fused` + `beside`) × `importance` × `recency`."""

    words: float = 0.0
    """By words (BM25): 0 or more."""
    cosine: float | None = None
    """By meaning, -1 to 1; absent where meaning was not asked for, and of a memory without a
    vector.
    """
    words_share: float = 0.0
    """The share of the best by words, 0 to 1."""
    meaning_share: float | None = None
    """The share of the best by meaning, 0 to 1."""
    form: float = 0.0
    """The factor of its length and form, where both ways were asked: a text of few words, and a
    question, count less.
    """
    fused: float = 0.0
    """Both shares by their weights, times `form`."""
    beside: float = 0.0
    """What it has from what was said right before and after it."""
    importance: float = 0.0
    """The factor of its importance."""
    recency: float = 0.0
    """The factor of its age."""
    reranker: float | None = None
    """What the reranker says of it, 0 to 1; absent where it was not asked. It takes the place of
    both shares and `form` in `fused`.
    """


@dataclass(slots=True)
class RecallHit:
    """A memory that was found."""

    memory: Memory | None = None
    """The memory."""
    score: float = 0.0
    """How well it fits; comparable within one answer only."""
    lexical_rank: int = 0
    """Its place among those found by words, from 1; 0: not among them."""
    vector_rank: int = 0
    """Its place among those found by meaning, from 1; 0: not among them."""
    age: timedelta | None = None
    """How long ago it was observed."""
    parts: ScoreParts | None = None
    """The parts of its score; only where the request has `explain`."""
    relevance: float = 0.0
    """How relevant it is to the query, 0 to 1; unlike `score` comparable across queries. By
    meaning: its cosine, rescaled so that unrelated memories have 0, plus up to 0.3 for shared
    words. By words alone: `word_coverage`. The reply to a question has up to 0.75 of the
    question's.
    """
    cosine: float | None = None
    """By meaning, -1 to 1; absent where the search was by words only, and of a memory without a
    vector.
    """
    word_coverage: float = 0.0
    """The share of the query that its words cover, 0 to 1: rare words weigh more, and words of
    requests and courtesies nothing.
    """


@dataclass(slots=True)
class RecallResponse:
    """What was found, best first."""

    hits: list[RecallHit] = field(default_factory=list)
    """The hits."""
    mode: RecallMode = RecallMode.UNSPECIFIED
    """How it was searched."""
    degraded: bool = False
    """True when it was not searched as asked; `notes` say why."""
    notes: list[str] = field(default_factory=list)
    """For people."""
    reranked: bool = False
    """True when a reranker judged the best of them. Where one is configured and gave no answer of
    use, the order is that of words and meaning, and `notes` say so.
    """


@dataclass(slots=True)
class GetMemoryRequest:
    """Asks for a memory."""

    id: str = ""
    """Its id."""
    subject: str = ""
    """When set: it must be this subject's, or visible to it."""
    external_key: str = ""
    """Instead of `id`: the current memory of `subject` that has this key."""


@dataclass(slots=True)
class GetMemoryResponse:
    """The memory."""

    memory: Memory | None = None
    """The memory."""


@dataclass(slots=True)
class ListMemoriesRequest:
    """Asks for a page of memories."""

    subject: str = ""
    """Only of this subject; empty: of all subjects of the tenant."""
    kind: MemoryKind = MemoryKind.UNSPECIFIED
    """Only of this kind."""
    tag: str = ""
    """Only those with this label."""
    page_size: int = 0
    """At most so many: up to 1,000; 0: 100."""
    page_token: str = ""
    """The `next_page_token` of the page before; empty for the first."""
    include_history: bool = False
    """True: also those that were superseded or have expired."""
    metadata_filter_json: Json = ""
    """Only those whose `metadata_json` fits, as `filter_json` of ListDocuments says it. Then a
    page may have fewer, or none: `next_page_token` says whether there are more.
    """
    subject_prefix: str = ""
    """Only of subjects whose ids begin so."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Only those whose metadata has all of these texts, as in a recall."""

    @property
    def metadata_filter(self) -> Any:
        """`metadata_filter_json` as a value; None where it is empty."""
        return _parsed(self.metadata_filter_json)


@dataclass(slots=True)
class ListMemoriesResponse:
    """A page of memories."""

    memories: list[Memory] = field(default_factory=list)
    """The memories."""
    next_page_token: str = ""
    """Empty on the last page."""


@dataclass(slots=True)
class ListSubjectsRequest:
    """Asks for subjects."""

    prefix: str = ""
    """Only those whose ids begin so; empty: all."""
    page_size: int = 0
    """At most so many: up to 1,000; 0: 100."""
    page_token: str = ""
    """The `next_page_token` of the page before; empty for the first."""


@dataclass(slots=True)
class ListSubjectsResponse:
    """A page of subjects."""

    subjects: list[SubjectMemories] = field(default_factory=list)
    """The subjects."""
    next_page_token: str = ""
    """Empty on the last page."""


@dataclass(slots=True)
class SubjectMemories:
    """A subject that has memories."""

    subject: str = ""
    """Its id."""
    memories: int = 0
    """Its memories that can be recalled."""


@dataclass(slots=True)
class ListConflictsRequest:
    """Asks for memories that may contradict each other."""

    subject: str = ""
    """Whose: memories of one subject are compared, its newest 1,000."""
    limit: int = 0
    """At most so many pairs: up to 100; 0: 20."""


@dataclass(slots=True)
class MemoryConflict:
    """Two memories that may contradict each other."""

    older: Memory | None = None
    """The one that was observed first."""
    newer: Memory | None = None
    """The other one."""
    likeness: float = 0.0
    """How alike they are, from 0 to 1: by words, and by meaning where both have a vector."""
    difference: ConflictDifference = ConflictDifference.UNSPECIFIED
    """In what they differ."""


@dataclass(slots=True)
class ListConflictsResponse:
    """Memories that may contradict each other. Both may be so: it is for people who look."""

    conflicts: list[MemoryConflict] = field(default_factory=list)
    """The pairs."""
    truncated: bool = False
    """True when there are more, or older memories that were not compared."""


@dataclass(slots=True)
class UpdateMemoryRequest:
    """Changes a memory."""

    memory: Memory | None = None
    """Its `id`, and the new values. With `subject` set it must be that subject's."""
    update_mask: list[str] = field(default_factory=list)
    """Which fields: `content`, `kind`, `visibility`, `polarity`, `tags`, `importance`,
    `observed_at`, `expires_at`, `pinned`, `metadata_json` or in its place `metadata`. At least
    one.
    """


@dataclass(slots=True)
class UpdateMemoryResponse:
    """The memory as it is now."""

    memory: Memory | None = None
    """The memory."""
    redacted: int = 0
    """What looked like secrets and was taken out before it was stored."""


@dataclass(slots=True)
class MemoryFilter:
    """Which memories: those that fit all that is set. At least one field is."""

    subject: str = ""
    """Only of this subject."""
    kinds: list[MemoryKind] = field(default_factory=list)
    """Only of these kinds."""
    tags: list[str] = field(default_factory=list)
    """Only those with all of these labels."""
    after: datetime | None = None
    """Only those observed at or after this moment."""
    before: datetime | None = None
    """Only those observed before this moment."""


@dataclass(slots=True)
class ForgetRequest:
    """Says what is to be forgotten. Versions that a memory superseded go with it."""

    id: str | None = None
    """The one of this id."""
    subject: str | None = None
    """All of this subject, with what else is kept of it."""
    filter: MemoryFilter | None = None
    """All that fit."""
    dry_run: bool = False
    """True: only count."""


@dataclass(slots=True)
class ForgetResponse:
    """What was removed, or would be."""

    memories: int = 0
    """Memories that could be recalled."""
    superseded: int = 0
    """Older versions of memories."""
    vectors: int = 0
    """Vectors."""
    recall_events: int = 0
    """Recall events in which one of them was a hit."""
    queued_embeddings: int = 0
    """Texts that waited to be embedded."""
    cursors: int = 0
    """Extraction cursors and leases."""
    erased: bool = False
    """True when nothing of it is left on the disk's pages either. False after a dry run, and when
    a long read held the log of the file, or others still forget: that is then done in the
    background; or when a backup was under way, whose copies of the files may have it until it
    ends. In a database (`journal.postgres`) it is true once all rows are removed: from the
    pages they go by `VACUUM`, which is the database's own.
    """


@dataclass(slots=True)
class GetManifestRequest:
    """Asks for the manifest of a subject."""

    subject: str = ""
    """Whose."""
    max_lines: int = 0
    """At most so many lines: up to 200; 0: 200."""
    max_bytes: int = 0
    """At most so many bytes: up to 25,000; 0: 25,000."""


@dataclass(slots=True)
class GetManifestResponse:
    """What is known of a subject, for an agent's prompt."""

    text: str = ""
    """A line for each memory; empty when there is none."""
    lines: int = 0
    """How many lines."""
    truncated: bool = False
    """True when a cap cut it off: then the last line says so."""


@dataclass(slots=True)
class LeaseExtractionRequest:
    """Asks for turns to look for facts in."""

    session_id: str = ""
    """The bot's own chat id."""
    generation: str = ""
    """Which life of it; empty: the live one, else the newest."""
    subject: str = ""
    """Whose memories the facts become; empty: the session's subject."""


@dataclass(slots=True)
class LeaseExtractionResponse:
    """Turns to look for facts in. Without any there is no lease, and nothing to do."""

    lease: str = ""
    """The lease, for CommitExtraction; empty when there is nothing to look at."""
    turns: list[Turn] = field(default_factory=list)
    """The turns, oldest first."""
    manifest: str = ""
    """What is known already: as GetManifest gives it."""
    prompt: str = ""
    """A prompt for a model, with the turns and the manifest in it."""
    expires_at: datetime | None = None
    """When the lease ends."""
    generation: str = ""
    """Which life of the session the turns are of."""
    cursor_seq: int = 0
    """The last turn that was looked at already; 0: none."""


@dataclass(slots=True)
class ExtractedMemory:
    """A fact that was found in leased turns."""

    kind: MemoryKind = MemoryKind.UNSPECIFIED
    """What it is about."""
    content: str = ""
    """The fact, in words."""
    tags: list[str] = field(default_factory=list)
    """Labels."""
    importance: float | None = None
    """From 0 to 1; absent: 0.5."""
    polarity: Polarity = Polarity.UNSPECIFIED
    """Which way it points; only of MEMORY_KIND_FEEDBACK."""
    observed_at: datetime | None = None
    """When it was so; absent: when the last of its turns was said."""
    expires_at: datetime | None = None
    """From when on it is not recalled any more."""
    supersedes_id: str = ""
    """The id of a memory whose place it takes."""
    visibility: Visibility = Visibility.UNSPECIFIED
    """Who may recall it."""
    seqs: list[int] = field(default_factory=list)
    """The turns it was found in, among the leased ones; empty: all of them."""


@dataclass(slots=True)
class CommitExtractionRequest:
    """Stores what was found."""

    lease: str = ""
    """The lease."""
    memories: list[ExtractedMemory] = field(default_factory=list)
    """The facts: up to 64. None is an answer too."""


@dataclass(slots=True)
class CommitExtractionResponse:
    """What became of the facts."""

    cursor_seq: int = 0
    """The last turn that was looked at."""
    results: list[RememberResponse] = field(default_factory=list)
    """What became of each fact, in their order."""


@dataclass(slots=True)
class LearnSessionRequest:
    """Asks what a model finds in the turns of a session that were not looked at yet."""

    session_id: str = ""
    """The bot's own chat id."""
    generation: str = ""
    """Which life of it; empty: the live one, else the newest."""
    subject: str = ""
    """Whose memories the facts become; empty: the session's subject."""
    dry_run: bool = False
    """True: nothing is leased or stored. The model is asked all the same."""


@dataclass(slots=True)
class LearnSessionResponse:
    """What a model found, and what became of it."""

    generation: str = ""
    """Which life of the session the turns are of."""
    first_seq: int = 0
    """The first turn that was looked at; 0: there was nothing to look at."""
    through_seq: int = 0
    """The last one."""
    cursor_seq: int = 0
    """The last turn that was looked at, before or now."""
    model: str = ""
    """The model."""
    prompt_tokens: int = 0
    """Tokens of the prompt; estimated where the provider does not count them."""
    answer_tokens: int = 0
    """Tokens of the answer."""
    facts: list[LearnedFact] = field(default_factory=list)
    """Each entry of the answer, in their order."""


@dataclass(slots=True)
class LearnedFact:
    """One entry of a model's answer."""

    kind: MemoryKind = MemoryKind.UNSPECIFIED
    """What it is about."""
    content: str = ""
    """The fact; what looks like a secret is not shown."""
    seqs: list[int] = field(default_factory=list)
    """The turns that it names."""
    refused: str = ""
    """Why it is not remembered: MALFORMED, TURNS_UNKNOWN, NOT_SAID_BY_USER, SECRET, INSTRUCTION,
    UNSUPPORTED, ECHO, REPEATED, OUTDATED, TOO_MANY. Empty: it is.
    """
    notes: list[str] = field(default_factory=list)
    """What of it was not taken, in words."""
    result: RememberResponse | None = None
    """What became of it; in a dry run what would have. Absent where it is refused."""
    supersedes_id: str = ""
    """The memory whose place it takes; empty: none."""


@dataclass(slots=True)
class ImportMemoriesRequest:
    """Memories to be stored as they are."""

    memories: list[Memory] = field(default_factory=list)
    """Up to 500."""


@dataclass(slots=True)
class ImportMemoriesResponse:
    """What an import did."""

    imported: int = 0
    """So many are new."""
    skipped: int = 0
    """So many were there already."""


@dataclass(slots=True)
class GetMemoryStatsRequest:
    """Asks for counts."""


@dataclass(slots=True)
class GetMemoryStatsResponse:
    """Counts of the tenant's memories."""

    memories: int = 0
    """Those that can be recalled."""
    superseded: int = 0
    """Those that are history."""
    subjects: int = 0
    """Subjects that have any."""
    recall_events: int = 0
    """Recall events that are kept."""
    embedding_model: str = ""
    """The embedder's model; empty: none is configured, recall is lexical only."""
    embedded: int = 0
    """Memories with a vector of this model."""
    embedding_queued: int = 0
    """Memories that wait for one."""
    embedding_failed: int = 0
    """Memories whose embedding was given up."""
    file_bytes: int = 0
    """Bytes of the tenant's file and its log; 0 where memories are in a database."""
    words_queued: int = 0
    """Memories whose words are to be indexed anew; until then the old index finds them."""
    reranker: str = ""
    """The reranker; empty: none is configured."""
    documents: int = 0
    """Documents (DocumentService), with those that have expired and are still to be removed.
    """
    document_bytes: int = 0
    """Bytes of their values, keys and namespaces."""


@dataclass(slots=True)
class ReindexMemoriesRequest:
    """Asks for new indexes."""


@dataclass(slots=True)
class ReindexMemoriesResponse:
    """They are being built."""

    queued: int = 0
    """So many memories wait for their embedding."""


@dataclass(slots=True)
class SearchTranscriptsRequest:
    """Asks for places in what was said."""

    query: str = ""
    """What is looked for, in words; of a long one the first words. May be empty where something
    else is named: then it is by that alone, newest first.
    """
    session_id: str = ""
    """Only in this session, in all of its generations."""
    subject: str = ""
    """Only in sessions of this subject."""
    after: datetime | None = None
    """Only what was said at or after this moment."""
    before: datetime | None = None
    """Only what was said before this moment."""
    roles: list[Role] = field(default_factory=list)
    """Only by these roles; empty: by all."""
    limit: int = 0
    """At most so many: up to 100; 0: 20. A page of long turns has fewer."""
    tool_name: str = ""
    """Only turns that call this tool, or have a result of it."""
    context_turns: int = 0
    """So many turns before and after each hit are given with it: up to 10. Of turns that are too
    long together only the hit.
    """
    page_token: str = ""
    """The next_page_token of the page before; the rest of the request has to be the same."""


@dataclass(slots=True)
class SearchTranscriptsResponse:
    """Places in what was said, best first. By words, the best 512 can be paged through."""

    hits: list[TranscriptHit] = field(default_factory=list)
    """The places."""
    next_page_token: str = ""
    """Asks for the next page; empty on the last one."""
    incomplete: bool = False
    """True when not all that was said before the call is indexed yet: hits may be missing."""


@dataclass(slots=True)
class TranscriptHit:
    """A place in what was said."""

    snippet: str = ""
    """The words around it."""
    session_id: str = ""
    """The bot's own chat id."""
    generation: str = ""
    """The generation's ULID."""
    seq: int = 0
    """The turn."""
    role: Role = Role.UNSPECIFIED
    """Who said it."""
    time: datetime | None = None
    """When."""
    score: float = 0.0
    """How well it fits; higher is better, 0 where the query has no words. Comparable within one
    search only.
    """
    turns: list[Turn] = field(default_factory=list)
    """The turn and those around it, in their order."""


@dataclass(slots=True)
class SessionInfo:
    """What is known of a live session."""

    session_id: str = ""
    """The bot's own chat id."""
    generation: str = ""
    """This life of the session: a ULID."""
    subject: str = ""
    """Whose memories its facts become; empty when the bot never said."""
    history_turns: int = 0
    """Turns that `GetHistory` with HISTORY_SCOPE_LIVE gives back, the anchor included."""
    history_bytes: int = 0
    """Their encoded bytes."""
    history_tokens: int = 0
    """Their tokens, estimated."""
    last_seq: int = 0
    """The seq of the newest turn; 0 where there is none. Less than before where `RewindSession`
    took turns back.
    """
    created_at: datetime | None = None
    """When the generation started."""
    last_access: datetime | None = None
    """When it was last touched."""
    expires_at: datetime | None = None
    """When it expires if nothing touches it. Unset where it never does."""
    has_summary: bool = False
    """True when a summary stands for the oldest exchanges."""
    state_version: int = 0
    """Counts the changes of the session's JSON, from 0."""
    compaction: CompactionInfo | None = None
    """How its compaction does."""
    state_json: Json = ""
    """The session's free-form JSON, where ListSessions was asked for it."""
    labels: dict[str, str] = field(default_factory=dict)
    """Names and values that the bot gave it, to find it by."""
    ttl_class: str = ""
    """The class of its TTL, where the bot chose one."""
    keep_all: bool = False
    """True where it keeps all of its history."""

    @property
    def state(self) -> Any:
        """`state_json` as a value; None where it is empty."""
        return _parsed(self.state_json)


@dataclass(slots=True)
class CompactionInfo:
    """How the compaction of a session does."""

    breaker: str = ""
    """`closed`, `open` or `half_open`."""
    consecutive_failures: int = 0
    """Failures since the last success."""
    last_error: str = ""
    """Why the last one failed; empty when none did. What a summarizer answered follows the reason
    in answers of GetSession to keys with the role admin only.
    """
    running: bool = False
    """True while one is being made."""
    summaries: int = 0
    """Summaries that were made in this generation."""
    through_seq: int = 0
    """The last turn that the summary stands for; 0 where there is none."""


@dataclass(slots=True)
class SummaryInfo:
    """What stands for the oldest turns of a session."""

    number: int = 0
    """Counts the summaries of the generation, from 1."""
    first_seq: int = 0
    """The first turn that it added to what the last summary stood for."""
    through_seq: int = 0
    """The last turn that it stands for."""
    turns: int = 0
    """Turns that it stands for in all, without those that windows show as they were said."""
    made_at: datetime | None = None
    """When it was made."""
    made_by: str = ""
    """What made it: `extractive`, or a provider and its model."""


@dataclass(slots=True)
class AppendRequest:
    """Adds turns to a session."""

    session_id: str = ""
    """The bot's own chat id, any characters, 1 to 256 bytes."""
    turns: list[Turn] = field(default_factory=list)
    """The turns, oldest first: 1 to 256. Not together with `messages_json`."""
    messages_json: Json = ""
    """The same as the provider's own array of messages or items, in `format`. At most 128 levels
    deep and 262,144 JSON values. A message or item may have two fields beside the provider's
    own, `memoird_client_id` (a string) and `memoird_client_json` (any JSON): they become the
    `client_id` and `client_json` of its turn, and are in no `messages_json` that is given.
    """
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """The format of `messages_json`."""
    subject: str = ""
    """Whose memories these are, at most 256 bytes. Empty: as it was."""
    idempotency_key: str = ""
    """A name for this very append, at most 256 bytes: said again within 24 hours it is answered
    and not done again. The newest 1,024 of a session count.
    """
    expected_seq: int | None = None
    """Refuse (STALE_SEQ) unless the newest turn has this seq, which `SessionInfo.last_seq` tells;
    0: unless the session has no turn. Turns that were taken back are none.
    """
    expected_generation: str = ""
    """Refuse (STALE_GENERATION) unless this is the live generation."""
    usage: ModelUsage | None = None
    """What the provider charged for the last model call."""
    partial: bool = False
    """True while this reply is still streaming."""
    state_patch_json: Json = ""
    """An RFC 7396 merge patch of the session's JSON, made with the turns or not at all. Empty:
    none.
    """
    expected_state_version: int | None = None
    """Refuse (STALE_STATE_VERSION) unless the state has this version."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels that the session gets, made with the turns or not at all; an empty value takes a
    label away, and labels that are not named stay. At most 16 of a session, with names of 1 to
    64 bytes and values of up to 256. They stay when the session is reset, and end with it.
    """
    ttl_class: str = ""
    """How long the session lives untouched from now on: a name of `ttl_classes` in the tenant's
    configuration (else TTL_CLASS_UNKNOWN), or `default`, which is `session_ttl`. Empty: as it
    was. At a cap of sessions one that never expires may still be evicted.
    """
    keep_all: bool | None = None
    """True: first in, first out drops nothing of the session's history; windows are cut as ever.
    An append, or an update of a turn, that would bring it above `max_history_bytes` is refused
    (HISTORY_FULL). False: first in, first out goes on with the next append. Absent: as it was.
    """

    @property
    def messages(self) -> Any:
        """`messages_json` as a value; None where it is empty."""
        return _parsed(self.messages_json)

    @property
    def state_patch(self) -> Any:
        """`state_patch_json` as a value; None where it is empty."""
        return _parsed(self.state_patch_json)


@dataclass(slots=True)
class AppendResponse:
    """What an append did."""

    session: SessionInfo | None = None
    """The session after it."""
    first_seq: int = 0
    """The seq of its first turn."""
    last_seq: int = 0
    """The seq of its last turn."""
    dropped_turns: int = 0
    """Turns that left the history, first in first out, to make room."""
    duplicate: bool = False
    """True when this `idempotency_key` was done before: nothing was added, and the figures are
    those of the first time.
    """


@dataclass(slots=True)
class GetContextRequest:
    """Asks for the window of the next model call."""

    session_id: str = ""
    """The bot's own chat id."""
    append: AppendRequest | None = None
    """An append to do first: one round trip per message. Its `session_id` is empty or the same.
    What can be refused of the window without looking at the session is refused before anything
    is appended.
    """
    model: str = ""
    """A model profile of the configuration; empty: its `default_model`."""
    budget: Budget | None = None
    """Overrides of the profile's budget, in tokens."""
    overhead_tokens: int = 0
    """Tokens that the bot adds to the call by itself."""
    system: str = ""
    """The system prompt."""
    tools_json: Json = ""
    """The provider's tool schemas: a JSON array, or empty. Only counted."""
    policy: WindowPolicy | None = None
    """How to choose the turns; absent: as configured."""
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """The format of `messages_json` in the answer; none: turns only."""
    attempt: int = 0
    """0 for the first try; each further one takes 10 % off the budget."""
    memories: RecallRequest | None = None
    """Memories to put into the window, in a block of their own behind the turns, where it breaks
    no provider's cache. `session_id` is this session's. What the window holds already is not
    put there twice.
    """
    set_cache_control: bool = False
    """Sets `cache_control` in a `messages_json` of MESSAGE_FORMAT_ANTHROPIC where the report has
    its `cache_breakpoints`, and nowhere else. Without it, of those that came with the messages
    the last two stay: Anthropic takes four in a request, and the system prompt and the tools
    may have one each.
    """
    peek: bool = False
    """Only look: the session is not touched, and what is decided for this window is not kept for
    the next. Not together with `append`.
    """
    recall_tool: bool = False
    """Offer the model the tool `read_earlier_turns`. It returns turns that the window omits. Its
    definition is `recall_tool_json` of the response, and counts in the budget. Needs a `format`
    (RECALL_TOOL_WITHOUT_FORMAT). Before the window is built, memoird appends the results of
    open calls of this tool if the assistant's newest turn has no other open call, unless `peek`
    is set. While other calls are open, the bot appends their results first.
    """

    @property
    def tools(self) -> Any:
        """`tools_json` as a value; None where it is empty."""
        return _parsed(self.tools_json)


@dataclass(slots=True)
class GetContextResponse:
    """The window of the next model call."""

    turns: list[Turn] = field(default_factory=list)
    """The turns of the window. Those that memoird made, or shows in other words, say so in their
    metadata `memoird`: `elision`, `abandoned`, `excerpt`, `trimmed`, `superseded`, `summary`,
    and `acknowledgement` for what the assistant seems to answer to it.
    """
    system: str = ""
    """The system prompt, to be sent apart: with system turns that the session began with, where
    MESSAGE_FORMAT_ANTHROPIC was asked for. Empty for MESSAGE_FORMAT_OPENAI, where it is the
    first of the messages.
    """
    messages_json: Json = ""
    """Where a format was asked for: the window as the provider's own message array."""
    memories: list[RecallHit] = field(default_factory=list)
    """Memories that were recalled for this window, best first."""
    session: SessionInfo | None = None
    """The session after the append."""
    report: ContextReport | None = None
    """Why the window is what it is."""
    memories_text: str = ""
    """The memories as the last message of `messages_json` tells them to the model, for bots that
    send `turns`. Empty when there are none.
    """
    recall_tool_json: Json = ""
    """Definition of the tool `read_earlier_turns`, to add to the provider's array of tools. Set if
    `recall_tool` was. It is the same for all sessions, so that the prompt cache stays valid.
    """

    @property
    def messages(self) -> Any:
        """`messages_json` as a value; None where it is empty."""
        return _parsed(self.messages_json)

    @property
    def recall_tool(self) -> Any:
        """`recall_tool_json` as a value; None where it is empty."""
        return _parsed(self.recall_tool_json)


@dataclass(slots=True)
class ResolveRecallToolRequest:
    """A call of the tool `read_earlier_turns`."""

    session_id: str = ""
    """The bot's own chat id."""
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
        """`arguments_json` as a value; None where it is empty."""
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
        """`messages_json` as a value; None where it is empty."""
        return _parsed(self.messages_json)


@dataclass(slots=True)
class ContextReport:
    """Why a window is what it is. All figures in tokens unless named otherwise."""

    input_budget: int = 0
    """What the window may use."""
    tokens_total: int = 0
    """What it uses."""
    tokens_by_block: TokensByBlock | None = None
    """What each block uses."""
    turns_included: int = 0
    """Turns in the window."""
    turns_omitted: int = 0
    """Turns of the history that are not in the window."""
    results_trimmed: int = 0
    """Tool results that were shortened."""
    stable_prefix_tokens: int = 0
    """The part at the front that was sent before, unchanged."""
    cache_breakpoints: list[int] = field(default_factory=list)
    """After which messages of `messages_json` a provider's cache may break, from 0; of `turns`
    where no format was asked for. Ascending.
    """
    turn_tokens: list[int] = field(default_factory=list)
    """Each of `turns`."""
    token_factor: float = 0.0
    """By how much the estimate was corrected."""
    token_margin: float = 0.0
    """How far it may be off, as a share: of a small request that is much, because of what a
    provider may add to each.
    """
    policy: str = ""
    """The policy that chose."""
    degraded: bool = False
    """True when something did not work as configured; `notes` say what."""
    notes: list[str] = field(default_factory=list)
    """For people."""
    budget: Budget | None = None
    """The budget that applied: the profile's with the call's overrides."""
    omissions: list[Omission] = field(default_factory=list)
    """What is not in the window, or not as it was said, in the order of the turns."""
    model: str = ""
    """The profile that applied."""
    summary: SummaryInfo | None = None
    """What stands for the oldest turns; unset when nothing does."""
    next_cut: NextCut | None = None
    """What the next cut is likely to do. Set where the call only looks (`peek`), unless windows
    slide.
    """


@dataclass(slots=True)
class NextCut:
    """What the next cut of a window is likely to do. All figures in tokens unless named otherwise.
    """

    at_tokens: int = 0
    """A window of more is cut."""
    in_turns: int | None = None
    """Turns until then, if they are as long as the last ones; unset where nothing was said yet.
    """
    tokens_after: int = 0
    """What a cut would leave now."""
    summary_ready: bool = False
    """True where a summary is ready, which takes the place of turns then."""
    omissions: list[Omission] = field(default_factory=list)
    """What a cut would take now of what the window shows."""


@dataclass(slots=True)
class Omission:
    """Turns that a window leaves out, or shows in other words. The stored turns stay as they are.
    """

    first_seq: int = 0
    """The first of them."""
    last_seq: int = 0
    """The last of them."""
    reason: OmissionReason = OmissionReason.UNSPECIFIED
    """Why."""


@dataclass(slots=True)
class TokensByBlock:
    """Tokens of a window by block."""

    system: int = 0
    """The system prompt and the tool schemas."""
    summary: int = 0
    """The summary of the oldest exchanges."""
    memories: int = 0
    """Recalled memories."""
    anchor: int = 0
    """The first user turn."""
    tail: int = 0
    """The newest turns."""


@dataclass(slots=True)
class GetHistoryRequest:
    """Reads turns, oldest first."""

    session_id: str = ""
    """The bot's own chat id."""
    generation: str = ""
    """A generation's ULID. Empty: the live one, for HISTORY_SCOPE_JOURNAL else the newest."""
    scope: HistoryScope = HistoryScope.UNSPECIFIED
    """Which turns."""
    after_seq: int = 0
    """Only turns after this seq."""
    limit: int = 0
    """Maximum number of turns, 1 to 1,000. Default 1,000. An answer also ends at 2 MiB, with
    `messages_json` in it; a turn that is larger is an answer of its own.
    """
    last: int = 0
    """Only the last so many turns, up to 1,000, rather than the first; 0: the first. Not together
    with `limit`. Where they are more than 2 MiB, the older ones are left out.
    """
    before_seq: int = 0
    """Only turns before this seq; 0: any."""
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """The format of `messages_json` in the answer; none: turns only."""


@dataclass(slots=True)
class GetHistoryResponse:
    """Turns, oldest first."""

    turns: list[Turn] = field(default_factory=list)
    """The turns."""
    next_after_seq: int = 0
    """The `after_seq` of the next page; 0 on the last one, and where `last` was asked for."""
    messages_json: Json = ""
    """Where a format was asked for: the same turns as the provider's own message array, without
    those that are `removed`. What came in that format is as it came.
    """
    system: str = ""
    """System turns that the page begins with, where MESSAGE_FORMAT_ANTHROPIC was asked for, which
    has no place for them among the messages.
    """
    session: SessionInfo | None = None
    """The session, where the turns are of its live generation."""
    previous_before_seq: int = 0
    """Where `last` was asked for: the `before_seq` of the page before; 0 on the first one."""

    @property
    def messages(self) -> Any:
        """`messages_json` as a value; None where it is empty."""
        return _parsed(self.messages_json)


@dataclass(slots=True)
class GetSessionRequest:
    """Reads one live session."""

    session_id: str = ""
    """The bot's own chat id."""
    include_state: bool = False
    """True: give the session's free-form JSON as well."""


@dataclass(slots=True)
class GetSessionResponse:
    """One live session."""

    session: SessionInfo | None = None
    """The session."""
    summary: SummaryInfo | None = None
    """What stands for its oldest turns; unset when nothing does."""
    summary_text: str = ""
    """What that says, as windows show it."""
    state_json: Json = ""
    """The session's free-form JSON, where it was asked for; `{}` before the first patch."""

    @property
    def state(self) -> Any:
        """`state_json` as a value; None where it is empty."""
        return _parsed(self.state_json)


@dataclass(slots=True)
class ListSessionsRequest:
    """Lists live sessions."""

    page_size: int = 0
    """At most so many: up to 1,000; 0: 100."""
    page_token: str = ""
    """The `next_page_token` of the page before; empty for the first."""
    include_state: bool = False
    """True: give the sessions' free-form JSON as well."""
    id_prefix: str = ""
    """Only sessions whose ids begin so; empty: any."""
    subject: str = ""
    """Only sessions of this subject; empty: of any."""
    labels: dict[str, str] = field(default_factory=dict)
    """Only sessions that have all of these labels."""
    updated_after: datetime | None = None
    """Only sessions that were touched after this time, and before that one, as `last_access` says.
    That is exact to two milliseconds: one that was touched at the very time is among them.
    """
    updated_before: datetime | None = None
    """See `updated_after`."""
    order: SessionOrder = SessionOrder.UNSPECIFIED
    """In which order."""


@dataclass(slots=True)
class ListSessionsResponse:
    """A page of live sessions."""

    sessions: list[SessionInfo] = field(default_factory=list)
    """The sessions. Fewer than were asked for, or none, do not mean that it is the last page: one
    call looks at some thousand sessions and no more.
    """
    next_page_token: str = ""
    """Empty on the last page. Of the same question only."""


@dataclass(slots=True)
class PatchStateRequest:
    """Changes the free-form JSON of a session."""

    session_id: str = ""
    """The bot's own chat id."""
    merge_patch_json: Json = ""
    """An RFC 7396 merge patch. The state starts as `{}`, and is an object of at most
    `limits.state_bytes` (64 KiB) and 128 levels. May be empty where one of `labels`,
    `ttl_class` and `keep_all` is given: then the state and its version stay.
    """
    expected_version: int | None = None
    """Refuse (STALE_STATE_VERSION) unless the state has this version."""
    create: bool = False
    """True: start the session where none lives."""
    replace: bool = False
    """True: `merge_patch_json` is the whole new state, and its nulls are kept."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels that the session gets, as in an append."""
    ttl_class: str = ""
    """How long the session lives untouched, as in an append."""
    keep_all: bool | None = None
    """Whether it keeps all of its history, as in an append."""
    idempotency_key: str = ""
    """A name for this very patch, as of an append: said again it is answered and not done again.
    """

    @property
    def merge_patch(self) -> Any:
        """`merge_patch_json` as a value; None where it is empty."""
        return _parsed(self.merge_patch_json)


@dataclass(slots=True)
class PatchStateResponse:
    """The state after a patch."""

    state_json: Json = ""
    """The whole state."""
    version: int = 0
    """Its version: one more than before where the state was patched, also by a patch that changes
    nothing; as it was where only `labels`, `ttl_class` or `keep_all` were given.
    """
    duplicate: bool = False
    """True when this `idempotency_key` was done before: nothing was changed, and the state is as
    it is now; `{}` of version 0 where the session has ended since.
    """

    @property
    def state(self) -> Any:
        """`state_json` as a value; None where it is empty."""
        return _parsed(self.state_json)


@dataclass(slots=True)
class RewindSessionRequest:
    """Takes the newest turns back."""

    session_id: str = ""
    """The bot's own chat id."""
    after_seq: int = 0
    """The newest turn that stays; 0: none stays. At most the highest seq that was ever given
    (AFTER_SEQ_INVALID).
    """
    turns: list[Turn] = field(default_factory=list)
    """What is said instead, as in an append: none, or up to 256 turns. Not together with
    `messages_json`.
    """
    messages_json: Json = ""
    """The same as the provider's own array of messages or items, in `format`. Empty: none."""
    format: MessageFormat = MessageFormat.UNSPECIFIED
    """The format of `messages_json`."""
    expected_seq: int | None = None
    """Refuse (STALE_SEQ) unless this is the session's `last_seq`; 0: unless it has no turn. A
    rewind that takes a turn back lowers it: of two that expect the same, one is refused.
    """
    expected_generation: str = ""
    """Refuse (STALE_GENERATION) unless this is the live generation."""
    idempotency_key: str = ""
    """A name for this very rewind, as of an append: said again it is answered and not done again.
    """

    @property
    def messages(self) -> Any:
        """`messages_json` as a value; None where it is empty."""
        return _parsed(self.messages_json)


@dataclass(slots=True)
class RewindSessionResponse:
    """What a rewind did."""

    session: SessionInfo | None = None
    """The session after it."""
    removed: list[Turn] = field(default_factory=list)
    """The turns that the history had and that are gone, oldest first: the newest of them, up to 2
    MiB; those of the first time where this is a `duplicate`. What first in, first out had
    dropped before is not among them; `GetHistory` with HISTORY_SCOPE_JOURNAL has all of it.
    """
    removed_turns: int = 0
    """How many turns the history had and has not any more."""
    first_seq: int = 0
    """The seq of the first turn that was added; one more than `last_seq` where none was."""
    last_seq: int = 0
    """The seq of the last turn that was added; where none was, the highest that was ever given.
    """
    dropped_turns: int = 0
    """Turns that left the history, first in first out, to make room for them."""
    duplicate: bool = False
    """True when this `idempotency_key` was done before: nothing was changed, and the figures are
    those of the first time.
    """
    removed_forgotten: bool = False
    """True where this is a `duplicate` and nobody knows any more what it took: there is no
    journal, or retention has taken its turns.
    """


@dataclass(slots=True)
class UpdateTurnRequest:
    """Gives a turn another content."""

    session_id: str = ""
    """The bot's own chat id."""
    seq: int = 0
    """Which turn (TURN_NOT_FOUND where the live generation has none of this seq). Either this or
    `client_id`.
    """
    turn: Turn | None = None
    """What it says from now on. Its role and the ids of its calls and results, in their order, are
    those of the turn that it replaces; its seq and pin do not count; without a time or a format
    it keeps those that it had; without a `client_id` it has none.
    """
    expected_generation: str = ""
    """Refuse (STALE_GENERATION) unless this is the live generation."""
    client_id: str = ""
    """In the place of `seq`: the turn with this `client_id`. One that was rewound is meant only
    where no other has it. CLIENT_ID_NOT_UNIQUE where several have it, TURN_NOT_FOUND where none
    has. The turns of the generation are read for it; `seq` costs the same at any length.
    """


@dataclass(slots=True)
class UpdateTurnResponse:
    """The turn as it is now."""

    turn: Turn | None = None
    """The turn."""
    session: SessionInfo | None = None
    """The session after it."""


@dataclass(slots=True)
class CopySessionRequest:
    """Makes a session of what was said in another one."""

    session_id: str = ""
    """The bot's own chat id of what is copied."""
    generation: str = ""
    """A generation's ULID. Empty: the live one, else the newest that the journal has."""
    through_seq: int = 0
    """The last turn that is copied; 0: all are."""
    target_session_id: str = ""
    """The id of the copy; it may be the same, where no session lives by it."""
    expected_absent: bool | None = None
    """Unset or true: refuse (TARGET_LIVES) where a session lives by that id. False: that one ends
    first, as by ResetSession, without hooks.
    """
    idempotency_key: str = ""
    """A name for this very copy, as of an append to the copy: said again it is answered and not
    done again.
    """


@dataclass(slots=True)
class CopySessionResponse:
    """What a copy did."""

    session: SessionInfo | None = None
    """The copy."""
    turns: int = 0
    """Turns that it got."""
    dropped_turns: int = 0
    """Of them, those that its history dropped at once, first in first out."""
    duplicate: bool = False
    """True when this `idempotency_key` was done before: nothing was copied, and the figures are
    those of the first time.
    """


@dataclass(slots=True)
class CompactSessionRequest:
    """Replaces the oldest exchanges by a summary."""

    session_id: str = ""
    """The bot's own chat id."""
    keep_exchanges: int | None = None
    """Number of exchanges that stay verbatim, 0 to 1,000. Unset: 5, or fewer where they take more
    than 30 % of the window.
    """


@dataclass(slots=True)
class CompactSessionResponse:
    """What was summarized."""

    session: SessionInfo | None = None
    """The session after it."""
    first_seq: int = 0
    """The first turn that the summary newly stands for; 0 where there is none."""
    last_seq: int = 0
    """The last one that it stands for."""
    summary: str = ""
    """The summary, as windows show it; empty where there is none."""
    summary_info: SummaryInfo | None = None
    """What it stands for."""
    tokens_before: int = 0
    """Tokens of what it newly stands for and of the summary before it, and its own. Estimated.
    """
    tokens_after: int = 0
    """See `tokens_before`."""
    is_new: bool = False
    """False when there was nothing to summarize: then this is the summary that stood before, if
    any did.
    """


@dataclass(slots=True)
class UndoCompactionRequest:
    """Restores what the last summary replaced."""

    session_id: str = ""
    """The bot's own chat id."""


@dataclass(slots=True)
class UndoCompactionResponse:
    """What was restored."""

    session: SessionInfo | None = None
    """The session after it."""
    restored_turns: int = 0
    """How many turns came back."""


@dataclass(slots=True)
class ResetSessionRequest:
    """Clears a live session."""

    session_id: str = ""
    """The bot's own chat id."""
    run_hooks: bool = False
    """True: the hooks of the generation that ends run."""


@dataclass(slots=True)
class ResetSessionResponse:
    """A session after its reset."""

    session: SessionInfo | None = None
    """The session, in its new generation."""
    ended_generation: str = ""
    """The generation that ended."""


@dataclass(slots=True)
class EndSessionRequest:
    """Ends the live generation."""

    session_id: str = ""
    """The bot's own chat id."""


@dataclass(slots=True)
class EndSessionResponse:
    """The generation that ended."""

    session: SessionInfo | None = None
    """The session as it was."""


@dataclass(slots=True)
class EraseSessionRequest:
    """Erases a session."""

    session_id: str = ""
    """The bot's own chat id."""
    generation: str = ""
    """One life of the session: a ULID. Empty: all that it has had so far."""


@dataclass(slots=True)
class EraseSessionResponse:
    """A session that is erased."""

    job_id: str = ""
    """The job's name: a ULID, for `GetErasure`."""
    done: bool = False
    """True when all is gone, from the disk's pages too; but see `outside`."""
    erased: Erased | None = None
    """What it removed so far. After a crash in its midst the numbers of memories and commits may
    be too small.
    """
    outside: list[str] = field(default_factory=list)
    """What memoird cannot reach, for people: a line for each generation that a hook was given, and
    for each commit that still holds it where the operator chose `erase: tombstone`; and one
    where the tenant has documents, of which memoird does not know whose they are. Backups that
    were made before are never listed.
    """


@dataclass(slots=True)
class EraseSubjectRequest:
    """Erases a subject."""

    subject: str = ""
    """The end user's id."""


@dataclass(slots=True)
class EraseSubjectResponse:
    """A subject that is erased."""

    job_id: str = ""
    """The job's name: a ULID, for `GetErasure`."""
    done: bool = False
    """True when all is gone, from the disk's pages too; but see `outside`."""
    erased: Erased | None = None
    """What it removed so far. After a crash in its midst the numbers of memories and commits may
    be too small.
    """
    outside: list[str] = field(default_factory=list)
    """What memoird cannot reach, for people: a line for each generation that a hook was given, and
    for each commit that still holds it where the operator chose `erase: tombstone`; and one
    where the tenant has documents, of which memoird does not know whose they are. Backups that
    were made before are never listed.
    """


@dataclass(slots=True)
class GetErasureRequest:
    """Asks for an erasure."""

    job_id: str = ""
    """What `EraseSession` or `EraseSubject` gave."""


@dataclass(slots=True)
class GetErasureResponse:
    """An erasure."""

    job_id: str = ""
    """The job's name: a ULID, for `GetErasure`."""
    done: bool = False
    """True when all is gone, from the disk's pages too; but see `outside`."""
    erased: Erased | None = None
    """What it removed so far. After a crash in its midst the numbers of memories and commits may
    be too small.
    """
    outside: list[str] = field(default_factory=list)
    """What memoird cannot reach, for people: a line for each generation that a hook was given, and
    for each commit that still holds it where the operator chose `erase: tombstone`; and one
    where the tenant has documents, of which memoird does not know whose they are. Backups that
    were made before are never listed.
    """
    waits_for: str = ""
    """What it waits for, or is busy with beside the journal, for people: a copy of the files that
    is being made, a hook that has a session in its hands, a program that reads the journal,
    what a hook wrote; and whether that has failed and is tried again. Empty where it waits for
    nothing, and at a daemon that shares the journal and does not do the erasures.
    """


@dataclass(slots=True)
class Erased:
    """What an erasure removed."""

    turns: int = 0
    """Turns of the journal."""
    summaries: int = 0
    """Summaries."""
    keys: int = 0
    """Idempotency keys."""
    memories: int = 0
    """Memories, older versions included."""
    deliveries: int = 0
    """Deliveries that hooks were owed, and do not get."""
    commits: int = 0
    """Commits of checkpoints that were written anew without it, or left out."""


@dataclass(slots=True)
class WatchEventsRequest:
    """Which events to watch."""

    after_event_id: int = 0
    """Only events after this one; 0: from now on. Of what other daemons that share the journal
    saw, what happened a moment before may be told as well.
    """
    all_tenants: bool = False
    """The events of every tenant, from now on. Needs a key with the role `admin`."""
    after_cursor: str = ""
    """Only events after this place: a `cursor` that a daemon gave with an event, this one or
    another one that shares its journal. Empty: see `after_event_id`, with which it cannot be
    used, nor with `all_tenants`. CURSOR_INVALID for any other text.
    """


@dataclass(slots=True)
class WatchEventsResponse:
    """One event, or the word that some were missed."""

    event: Event | None = None
    """What happened."""
    missed: int = 0
    """Events that had left the ring before they could be sent. The ring keeps the last 4,096 of a
    tenant.
    """
    missed_tenant: str = ""
    """Whose events were missed."""
    cursor: str = ""
    """The place behind this, for `after_cursor`. Empty where the events of all tenants are
    watched.
    """


@dataclass(slots=True)
class Event:
    """What happened to a session."""

    event_id: int = 0
    """Counts the tenant's events one by one, in each start of the daemon from a higher number.
    After an id of an earlier start come all events of this one that the ring has. Of daemons
    that share a journal each counts what it tells, so an id means nothing to another one:
    `cursor` does. Events of one daemon come in their order; of a session that several serve,
    `seq` says what came first.
    """
    time: datetime | None = None
    """When."""
    kind: str = ""
    """`created`, `appended`, `rewound`, `turn_updated`, `expired`, `evicted`, `ended` (by command:
    see `reason`), `compacted`, `compaction_failed`, `compaction_undone`, `hook_delivered`,
    `hook_failed`, `erased`, `learned` or `extraction_failed`; more kinds may come.
    """
    tenant: str = ""
    """The tenant."""
    session_id: str = ""
    """The bot's own chat id."""
    generation: str = ""
    """The generation's ULID."""
    reason: EndReason = EndReason.UNSPECIFIED
    """Why it ended, where it did."""
    detail_json: Json = ""
    """More, as a JSON object. Of `appended`: `first_seq`, `last_seq`, `dropped_turns`, and
    `client_ids`: those of the turns that have one, in order and up to 1 KiB of them, left out
    where there are none. Of `rewound`: `after_seq`, `through_seq` (the highest seq that was
    given until then). Of `turn_updated`: `seq`. Of hooks: `hook`, `delivery`, `tries`, and
    where it failed `gave_up` and, for keys with the role admin, `error`. Of `compacted`:
    `number` (of the summary, from 1), `trigger` (`preemptive`, `reactive`, `history` or
    `command`), `by`, `first_seq`, `through_seq`, `tokens_before`, `tokens_after`. Of
    `compaction_failed`: `trigger`, `reason`, `breaker` (what it lets through from now on) and
    `error`, which bots are told where it repeats nothing that a summarizer answered. Of
    `compaction_undone`: `number`. Of `learned`: `by` (the model), `first_seq`, `through_seq`,
    `kept` and `refused` (facts), `tokens`. Of `extraction_failed`: `reason`, `gave_up` and, for
    keys with the role admin, `error`.
    """

    @property
    def detail(self) -> Any:
        """`detail_json` as a value; None where it is empty."""
        return _parsed(self.detail_json)
