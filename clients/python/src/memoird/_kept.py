"""Messages of frameworks in turns: the turn says what models read of one, and its `client_json` the rest.

So a message is given back equal, and windows, summaries and search see what was said.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .types import Media, MessageFormat, Part, Role, Turn

# A text of so many characters that a part has is not kept twice.
LONG_TEXT = 64
ID_BYTES_MAX = 256
CALL_ID_BYTES_MAX = 4096
# Of a memory, of what is asked for in memories, and of a label of one.
CONTENT_BYTES, QUERY_BYTES, TAG_BYTES = 8 << 10, 4 << 10, 128
_LIFTED, _WHOLE = "$memoird", "whole"
# Before the name of a field of an opaque part, as a place.
_EXTRA = "extra."
# Of a turn.
PARTS_MAX = 128
# What memoird made of turns, or said in other words, has this in its metadata.
_MADE = "memoird"


def kept(
    role: Role,
    parts: Sequence[Part],
    framework: str,
    message: dict[str, Any],
    id: str | None,
    format: MessageFormat = MessageFormat.UNSPECIFIED,
) -> Turn:
    """A turn of these parts that holds a message of a framework, as JSON has it.

    `format` is that of the provider whose objects `opaque` parts are.
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
    """The format of a turn: objects of a provider are given back to it alone."""
    if any(part.tool_result for part in parts):
        # Results may then be of unknown calls.
        return MessageFormat.OPENAI_RESPONSES
    if any(part.extra_json for part in parts):
        # Without a format it would be given to any provider.
        return format or MessageFormat.ANTHROPIC
    return MessageFormat.UNSPECIFIED


def opaque(fields: dict[str, Any]) -> list[Part]:
    """A part that memoird counts and keeps with its call, but has no word for; none where it is no JSON.

    Fields that name a call, such as `tool_use_id` and `call_id`, pair it.
    """
    try:
        return [Part(text="", extra_json=_text(fields))]
    except (TypeError, ValueError):
        return []


def _bounded(parts: Sequence[Part]) -> list[Part]:
    """The parts; where a turn may not have as many, one for all that are opaque."""
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
        # Numbers that JSON does not have: a text of JSON as Python writes it.
        return json.dumps({**held, framework: json.dumps(held[framework])})


def kept_in(turn: Turn, framework: str) -> dict[str, Any] | None:
    """The message that the turn holds; None where it has none, or memoird says it in other words."""
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
    """What a turn says, without calls and media."""
    texts = (part.text or (part.tool_result.content if part.tool_result else "") for part in turn.parts)
    return "\n".join(text for text in texts if text)


def media(media_type: str, uri: str) -> Part:
    """A part of media by its URI, which may hold it."""
    return Part(media=Media(media_type=media_type, uri=uri))


# From the base64 for addresses, as pydantic writes bytes, to the one of URIs, which providers take, and back.
FOR_URIS, FOR_ADDRESSES = str.maketrans("-_", "+/"), str.maketrans("+/", "-_")


def base64_uri(media_type: str, data: str) -> str:
    """The URI that holds such data."""
    return f"data:{media_type};base64,{data}"


def is_id(value: object) -> bool:
    """True for a valid id of a call."""
    return isinstance(value, str) and 0 < len(value.encode(errors="surrogatepass")) <= CALL_ID_BYTES_MAX


def is_name(value: object) -> bool:
    """True for a valid name of a tool."""
    return is_id(value) and len(str(value).encode(errors="surrogatepass")) <= ID_BYTES_MAX


def cut(text: str, most: int) -> str:
    """The beginning of a text, in bytes."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def _texts(part: Part) -> list[tuple[str, str]]:
    """Texts of a part that a message may have too, with where they are."""
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
    """True where a message has what looks like our mark: then nothing is taken out of it."""
    if isinstance(value, dict):
        return _is_mark(value) or any(_has_marks(it) for it in value.values())
    return isinstance(value, (list, tuple)) and any(_has_marks(it) for it in value)
