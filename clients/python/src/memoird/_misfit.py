"""Finds the field with an invalid value in a request that could not be encoded."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from . import _wire, types

_SCALARS: dict[str, tuple[type[Any], str]] = {
    "str": (str, "a text"),
    "bytes": (bytes, "bytes"),
    "Bytes": (bytes, "bytes"),
    "bool": (bool, "True or False"),
    "int": (numbers.Integral, "a whole number"),
    "float": (numbers.Real, "a number"),
    "datetime": (datetime, "a datetime"),
    "timedelta": (timedelta, "a timedelta"),
}
_UINT32 = FieldDescriptor.TYPE_UINT32


class Misfit(Exception):
    """A field with an invalid value, and the accepted type."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place} {problem}")
        self.place = place


def look(request: Descriptor, it: Any, at: str = "") -> None:
    """Raises `Misfit` for the first invalid field of a request, if it finds one."""
    chosen: dict[str, str] = {}
    spent = ""
    for field in dataclasses.fields(it):
        value, place = getattr(it, field.name), f"{at}.{field.name}" if at else field.name
        hint = str(field.type).removesuffix(" | None")
        if value is None and not hint.startswith(("list[", "dict[")):
            continue
        described = request.fields_by_name[field.name]
        one_of = described.containing_oneof
        # Names of synthetic oneofs, for optional fields, start with an underscore.
        if one_of is not None and not one_of.name.startswith("_"):
            other = chosen.setdefault(one_of.name, place)
            if other != place:
                raise Misfit(place, f"is not taken together with {other}; leave one of them out")
        spent = place if isinstance(value, Iterator) else spent
        _look_at(described, hint, value, place)
    if spent:
        # An iterator is exhausted after the first attempt, and nothing else is wrong.
        raise Misfit(spent, "takes a list; make one of the iterator to be told what is wrong in it")


def _look_at(field: FieldDescriptor, hint: str, value: Any, place: str) -> None:
    if hint.startswith("list["):
        if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
            raise _not_taken(place, "a list", value)
        for index, one in enumerate(value):
            _look_at(field, hint[5:-1], one, f"{place}[{index}]")
        return
    if hint.startswith("dict["):
        if not isinstance(value, Mapping):
            raise _not_taken(place, "a dict", value)
        for name, text in value.items():
            if not isinstance(name, str):
                raise _not_taken(place, "texts as names", name)
            _look_at_scalar(field, "str", name, place)
            _look_at_scalar(field, "str", text, f"{place}[{name!r}]")
        return
    if hint == "Json":
        try:
            value = _wire.write_json(value)  # type: ignore[no-untyped-call]
        except (TypeError, ValueError, RecursionError) as problem:
            raise Misfit(place, f"takes JSON: {problem}") from None
        _look_at_scalar(field, "str", value, place)
        return
    kind = getattr(types, hint, None)
    if kind is None or hint in _SCALARS:
        _look_at_scalar(field, hint, value, place)
    elif not issubclass(kind, types.Open):
        if not isinstance(value, kind):
            raise _not_taken(place, f"a {hint}", value)
        assert field.message_type is not None
        look(field.message_type, value, place)
    elif not _is_whole(value) or not -(2**31) <= value < 2**31:
        raise _not_taken(place, f"a member of {hint}", value)


def _look_at_scalar(field: FieldDescriptor, hint: str, value: Any, place: str) -> None:
    kind, takes = _SCALARS[hint]
    if not isinstance(value, kind) or (hint == "int" and not _is_whole(value)):
        raise _not_taken(place, takes, value)
    limit = 2**32 if field.type == _UINT32 else 2**64
    if hint == "int" and not 0 <= int(value) < limit:
        raise _not_taken(place, f"a whole number from 0 to {limit - 1}", value)
    try:
        if hint == "str":
            str(value).encode()
        elif hint == "datetime":
            _wire.write_time(value)  # type: ignore[no-untyped-call]
        elif hint == "timedelta":
            _wire.write_span(value)  # type: ignore[no-untyped-call]
    except (ValueError, OverflowError) as problem:
        raise Misfit(place, f"takes {takes}: {problem}") from None


def _is_whole(value: Any) -> bool:
    # Some versions of protobuf accept True as 1.
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _not_taken(place: str, takes: str, value: Any) -> Misfit:
    # Only numbers are shown, because other values may be confidential.
    has = repr(value) if isinstance(value, (int, float)) else f"a {type(value).__name__}"
    return Misfit(place, f"takes {takes}, not {has}")
