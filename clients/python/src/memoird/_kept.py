"""Stores messages of frameworks in turns.

A turn has the content of the message that models read. Its `client_json` has the rest. So a message
is restored exactly, and its content is available to windows, summaries and search.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .types import Media, MessageFormat, Part, Role, Turn

# Minimum length of a text that is stored in a part only, not in `client_json` as well.
LONG_TEXT = 64
ID_BYTES_MAX = 256
CALL_ID_BYTES_MAX = 4096
# Maximum sizes in bytes: content of a memory, query, and label.
CONTENT_BYTES, QUERY_BYTES, TAG_BYTES = 8 << 10, 4 << 10, 128
_LIFTED, _WHOLE = "$memoird", "whole"
# Prefix of references to fields of an opaque part.
_EXTRA = "extra."
# Maximum number of parts of a turn.
PARTS_MAX = 128
# Metadata key of turns that memoird made or changed.
_MADE = "memoird"


def kept(
    role: Role,
    parts: Sequence[Part],
    framework: str,
    message: dict[str, Any],
    id: str | None,
    format: MessageFormat = MessageFormat.UNSPECIFIED,
) -> Turn:
    """Returns a turn of these parts that contains a message of a framework, a JSON value.

    `format` is the format of the provider to which the `opaque` parts belong.
    """
    filled = _bounded(parts) or [Part(text="")]
    texts: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for at, part in enumerate(filled):
        for text, place in _texts(part):
            if len(text) >= LONG_TEXT:
                texts.setdefault(text, [at, place])
        for key, value in _extra(part).items():
            if isinstance(value, str) and len(value) >= LONG_TEXT:
                texts.setdefault(value, [at, _EXTRA + key])
            elif isinstance(value, (dict, list)) and len(text := _text(value)) >= LONG_TEXT:
                values.setdefault(text, [at, _EXTRA + key])
    held = {framework: message, _WHOLE: True}
    if not _has_marks(message):
        held = {framework: _lifted(message, texts, values)}
    return Turn(
        role,
        filled,
        client_id=id if id and len(id.encode(errors="surrogatepass")) <= ID_BYTES_MAX else "",
        client_json=_json(held, framework),
        format=turn_format(filled, format),
    )


def turn_format(parts: Sequence[Part], format: MessageFormat) -> MessageFormat:
    """Returns the format of a turn. Objects of a provider are returned to that provider only."""
    if any(part.tool_result for part in parts):
        # Only this format allows results of unknown calls.
        return MessageFormat.OPENAI_RESPONSES
    if any(part.extra_json for part in parts):
        # Without a format, the objects would be sent to any provider.
        return format or MessageFormat.ANTHROPIC
    return MessageFormat.UNSPECIFIED


def opaque(fields: dict[str, Any]) -> list[Part]:
    """Returns a part for an object that memoird only stores and counts.

    Returns an empty list if it is not valid JSON. Fields that name a call, such as `tool_use_id`
    and `call_id`, keep it together with that call.
    """
    try:
        return [Part(text="", extra_json=_text(fields))]
    except (TypeError, ValueError):
        return []


def _bounded(parts: Sequence[Part]) -> list[Part]:
    """Returns the parts. If there are too many for a turn, one part replaces all opaque ones."""
    if len(parts) <= PARTS_MAX:
        return list(parts)
    blocks = [_extra(part) for part in parts if _is_opaque(part)]
    rest = [part for part in parts if not _is_opaque(part)]
    return [*rest, *opaque({"blocks": blocks})] if blocks else rest


def _is_opaque(part: Part) -> bool:
    return part.text == "" and bool(part.extra_json)


def _extra(part: Part) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(part.extra_json) if part.extra_json else {}
    return fields


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _json(held: dict[str, Any], framework: str) -> str:
    try:
        return _text(held)
    except ValueError:
        # Contains numbers that JSON cannot represent: store it as a string of Python's JSON.
        return json.dumps({**held, framework: json.dumps(held[framework])})


def kept_in(turn: Turn, framework: str) -> dict[str, Any] | None:
    """Returns the message in the turn. None if there is none, or memoird changed the turn."""
    if not turn.client_json or _MADE in turn.metadata:
        return None
    held = turn.client
    message = held.get(framework) if isinstance(held, dict) else None
    if isinstance(message, str):
        message = json.loads(message)
    if not isinstance(message, dict):
        return None
    return message if held.get(_WHOLE) else _filled(message, turn.parts)


def text_of(turn: Turn) -> str:
    """Returns the text of a turn, without calls and media."""
    texts = (part.text or (part.tool_result.content if part.tool_result else "") for part in turn.parts)
    return "\n".join(text for text in texts if text)


def media(media_type: str, uri: str) -> Part:
    """Returns a media part with a URI, which may be a data URI."""
    return Part(media=Media(media_type=media_type, uri=uri))


# Converts the URL-safe base64 of pydantic to the standard base64 of data URIs, and back.
FOR_URIS, FOR_ADDRESSES = str.maketrans("-_", "+/"), str.maketrans("+/", "-_")


def base64_uri(media_type: str, data: str) -> str:
    """Returns the data URI of base64 data."""
    return f"data:{media_type};base64,{data}"


def is_id(value: object) -> bool:
    """Whether this is a valid id of a tool call."""
    return isinstance(value, str) and 0 < len(value.encode(errors="surrogatepass")) <= CALL_ID_BYTES_MAX


def is_name(value: object) -> bool:
    """Whether this is a valid name of a tool."""
    return is_id(value) and len(str(value).encode(errors="surrogatepass")) <= ID_BYTES_MAX


def cut(text: str, most: int) -> str:
    """Truncates a text to a maximum size in bytes."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def _texts(part: Part) -> list[tuple[str, str]]:
    """Returns the texts of a part that its message may contain as well, by field."""
    if part.text is not None:
        return [(part.text, "text")]
    if part.tool_result:
        inner = enumerate(part.tool_result.parts)
        within = [(text, f"{at}.{place}") for at, it in inner for text, place in _texts(it)]
        return [(part.tool_result.content, "content"), *within]
    if part.tool_use:
        return [(part.tool_use.input_json, "input")]
    if part.thinking:
        return [(part.thinking.text, "thinking"), (part.thinking.signature, "signature")]
    if part.media and part.media.uri:
        uri = part.media.uri
        data = uri.partition(";base64,")[2]
        return [(uri, "uri"), (data, "base64"), (data.translate(FOR_ADDRESSES), "address64")]
    return []


def _lifted(value: Any, texts: dict[str, Any], values: dict[str, Any]) -> Any:
    if isinstance(value, str):
        return {_LIFTED: texts[value]} if value in texts else value
    if not isinstance(value, (dict, list, tuple)):
        return value
    if values:
        try:
            place = values.get(_text(value))
        except (TypeError, ValueError):
            place = None
        if place:
            return {_LIFTED: place}
    if isinstance(value, dict):
        return {key: _lifted(it, texts, values) for key, it in value.items()}
    return [_lifted(it, texts, values) for it in value]


def _filled(value: Any, parts: list[Part]) -> Any:
    if isinstance(value, dict):
        if _is_mark(value):
            at, place = value[_LIFTED]
            if place.startswith(_EXTRA):
                return _extra(parts[at])[place.removeprefix(_EXTRA)]
            return dict((place, text) for text, place in _texts(parts[at]))[place]
        return {key: _filled(it, parts) for key, it in value.items()}
    if isinstance(value, list):
        return [_filled(it, parts) for it in value]
    return value


def _is_mark(value: dict[str, Any]) -> bool:
    return len(value) == 1 and _LIFTED in value


def _has_marks(value: Any) -> bool:
    """Whether a message contains an object that looks like a reference. Then no text of it is replaced."""
    if isinstance(value, dict):
        return _is_mark(value) or any(_has_marks(it) for it in value.values())
    return isinstance(value, (list, tuple)) and any(_has_marks(it) for it in value)
