"""Generates Python code from the proto files: stubs, dataclasses and the methods of the clients.

    pip install grpcio-tools==1.62.3 && python generate.py

This compiler is the oldest one whose stubs work with every protobuf from 4.25 on. The output is
committed. A test fails if it is stale.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

HERE = pathlib.Path(__file__).parent
PROTO = HERE.parent.parent / "proto"
FILES = ["common", "document", "memory", "session"]
# The same, and a file without messages that the others import.
STUBS = ["options", *FILES]
SERVICES = {"SessionService", "MemoryService", "DocumentService"}
GENERATED = '"""{}\n\nGenerated from the contract by generate.py."""\n'

SCALARS = {
    Field.TYPE_STRING: ("str", '""'),
    Field.TYPE_BYTES: ("bytes", 'b""'),
    Field.TYPE_BOOL: ("bool", "False"),
    Field.TYPE_DOUBLE: ("float", "0.0"),
    Field.TYPE_FLOAT: ("float", "0.0"),
    Field.TYPE_UINT32: ("int", "0"),
    Field.TYPE_UINT64: ("int", "0"),
}
# Messages that are converted to standard types: the type, its reader and its writer.
FOREIGN = {
    ".google.protobuf.Timestamp": ("datetime", "read_time", "write_time"),
    ".google.protobuf.Duration": ("timedelta", "read_span", "write_span"),
}
# Calls that may be retried when their outcome is unknown.
REPEATABLE = {
    "BuildContext", "GetHistory", "ResolveRecallTool", "GetSession", "ListSessions", "CompactSession", "EraseSession",
    "EraseSubject", "GetErasure", "Append", "UpdateTurn", "CopySession", "Remember", "Recall", "GetMemory", "ListMemories",
    "ListSubjects", "ListConflicts",
    "Forget", "GetManifest", "CommitExtraction", "ImportMemories", "GetMemoryStats",
    "UpdateSession", "RewindSession", "EndSession", "ResetSession", "SearchTranscripts", "GetDocument", "PutDocument",
    "DeleteDocument", "DeleteDocuments", "ListDocuments", "ListNamespaces", "BatchDocuments",
}
# Calls whose first string may be empty, to select all or to use another field instead.
EMPTY_FIRST = {"GetMemory", "WatchEvents", "ListMemories", "ListSubjects", "Recall"}
# Number of parameters that may be positional.
POSITIONAL = 3


def snake(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def last(name):
    return name.rsplit(".", 1)[-1]


class Contract:
    """The proto files with their comments."""

    def __init__(self, descriptors):
        self.files = [f for f in descriptors.file if f.package == "memoird.v1"]
        self.maps, self.home = set(), {}
        for file in self.files:
            for message in file.message_type:
                self.home[message.name] = pathlib.Path(file.name).stem
                for nested in message.nested_type:
                    if nested.options.map_entry:
                        self.maps.add(f".memoird.v1.{message.name}.{nested.name}")

    def comments(self, file):
        return {
            tuple(place.path): place.leading_comments.strip()
            for place in file.source_code_info.location
            if place.leading_comments
        }

    def messages(self):
        for file in self.files:
            comments = self.comments(file)
            for index, message in enumerate(file.message_type):
                fields = [
                    (field, comments.get((4, index, 2, number), ""))
                    for number, field in enumerate(message.field)
                ]
                yield message.name, comments.get((4, index), ""), fields

    def enums(self):
        for file in self.files:
            comments = self.comments(file)
            for index, enum in enumerate(file.enum_type):
                values = [
                    (value, comments.get((5, index, 2, number), ""))
                    for number, value in enumerate(enum.value)
                ]
                yield enum.name, comments.get((5, index), ""), values

    def calls(self):
        for file in self.files:
            comments = self.comments(file)
            for index, service in enumerate(file.service):
                if service.name in SERVICES:
                    for number, method in enumerate(service.method):
                        yield service, method, comments.get((6, index, 2, number), "")


class Shape:
    """The Python form of a field."""

    def __init__(self, contract, field):
        name = field.name
        repeated = field.label == Field.LABEL_REPEATED
        optional = field.proto3_optional or field.HasField("oneof_index")
        message = field.type == Field.TYPE_MESSAGE
        one, self.default = "", "None"
        read, write = "{}", "{}"
        if message and field.type_name in contract.maps:
            one, self.default = "dict[str, str]", "field(default_factory=dict)"
            read = "dict({})"
        elif field.type_name == ".google.protobuf.FieldMask":
            one, self.default = "list[str]", "field(default_factory=list)"
            read, write = "list({}.paths)", "FieldMask(paths=write_list({}))"
            message = False
        elif message and field.type_name in FOREIGN:
            one, reader, writer = FOREIGN[field.type_name]
            read, write = reader + "({})", writer + "({})"
        elif message:
            one = last(field.type_name)
            read, write = f"read_{snake(one)}({{}})", f"write_{snake(one)}({{}})"
        elif field.type == Field.TYPE_ENUM:
            one = last(field.type_name)
            self.default = f"{one}.UNSPECIFIED"
            read, write = f"t.{one}({{}})", "write_number({})"
        else:
            one, self.default = SCALARS[field.type]
        if (name == "json" or name.endswith("_json")) and one == "str":
            write = "write_json({})"
        if one == name == "bytes":
            # A field of this name shadows the type.
            one = "Bytes"
        self.type = one
        source, target = f"m.{name}", f"it.{name}"
        is_map = one.startswith("dict")
        if repeated and not is_map:
            self.type, self.default = f"list[{one}]", "field(default_factory=list)"
            self.read = f"[{read.format('x')} for x in {source}]"
            listed = target if message else f"write_list({target})"
            self.write = f"[{write.format('x')} for x in {listed}]"
            if read == "{}":
                self.read = f"list({source})"
                self.write = f"write_list({target})"
        elif is_map:
            self.read, self.write = read.format(source), f"dict({target})"
        elif message:
            self.type = f"{one} | None"
            self.read = f"{read.format(source)} if m.HasField('{name}') else None"
            self.write = f"None if {target} is None else {write.format(target)}"
        elif optional:
            self.type, self.default = f"{one} | None", "None"
            self.read = f"{read.format(source)} if m.HasField('{name}') else None"
            self.write = target
            if write != "{}":
                self.write = f"None if {target} is None else {write.format(target)}"
        else:
            self.read, self.write = read.format(source), write.format(target)
        # A parameter accepts the values of the field, and any value for JSON.
        self.parameter = re.sub(r"^list\[", "Sequence[", self.type)
        self.absent = "()" if self.parameter.startswith("Sequence") else self.default
        if is_map:
            self.parameter, self.absent = "Mapping[str, str]", "MappingProxyType({})"
        if "write_json" in write:
            self.type = self.parameter = "Json | None" if optional else "Json"


def one_of(fields):
    """Names of the fields of each oneof of a message."""
    groups = {}
    for field, _ in fields:
        if field.HasField("oneof_index") and not field.proto3_optional:
            groups.setdefault(field.oneof_index, []).append(field.name)
    return groups.values()


def doc(text, indent):
    lines = textwrap.wrap(" ".join(text.split()), 96 - indent)
    if not lines:
        return ""
    # A final quote must not touch the closing quotes.
    lines[-1] += " " if lines[-1].endswith('"') else ""
    pad = " " * indent
    if len(lines) == 1 and len(lines[0]) + indent < 90:
        begin = " " if lines[0].startswith('"') else ""
        return f'{pad}"""{begin}{lines[0]}"""\n'
    return "\n".join([f'{pad}"""{lines[0]}'] + [pad + line for line in lines[1:]]) + f'\n{pad}"""\n'


def types(contract):
    out = [GENERATED.format("Requests and responses: a dataclass for each message of the contract.")]
    out.append(
        "from __future__ import annotations\n\nimport json\n"
        "from dataclasses import dataclass, field\nfrom datetime import datetime, timedelta\n"
        "from enum import IntEnum\nfrom typing import Any\n\n"
        "Json = Any\n"
        '"""A JSON text, or a value to encode."""\n'
        "Bytes = bytes\n\n\n"
        "class Open(IntEnum):\n"
        '    """An open enumeration: newer daemons may send further values."""\n\n'
        "    @classmethod\n    def _missing_(cls, value: object) -> Open | None:\n"
        "        if not isinstance(value, int):\n            return None\n"
        "        member = int.__new__(cls, value)\n"
        '        member._name_, member._value_ = f"UNKNOWN_{value}", value\n'
        "        return cls._value2member_map_.setdefault(value, member)  # type: ignore\n\n\n"
        "def _parsed(text: Json) -> Any:\n"
        "    return (json.loads(text) if text else None) if isinstance(text, str) else text\n"
    )
    names = [name for name, *_ in contract.enums()] + [name for name, *_ in contract.messages()]
    out.insert(2, "\n__all__ = [\n" + "".join(f'    "{name}",\n' for name in sorted(names)) + "]\n")
    for name, comment, values in contract.enums():
        prefix = snake(name).upper() + "_"
        out.append(f"\n\nclass {name}(Open):\n{doc(comment, 4)}\n")
        for value, said in values:
            out.append(f"    {value.name.removeprefix(prefix)} = {value.number}\n{doc(said, 4)}")
    for name, comment, fields in contract.messages():
        out.append(f"\n\n@dataclass(slots=True)\nclass {name}:\n{doc(comment, 4)}")
        out.append("\n" if fields else "")
        taken = {field.name for field, _ in fields}
        for field, said in fields:
            shape = Shape(contract, field)
            out.append(f"    {field.name}: {shape.type} = {shape.default}\n{doc(said, 4)}")
        for field, _ in fields:
            short = "value" if field.name == "json" else field.name.removesuffix("_json")
            if short != field.name and short not in taken:
                out.append(
                    f"\n    @property\n    def {short}(self) -> Any:\n"
                    f'        """`{field.name}` as a value. None if it is empty."""\n'
                    f"        return _parsed(self.{field.name})\n"
                )
    return "".join(out)


def wire(contract):
    out = [GENERATED.format("Converts dataclasses to protobuf messages and back.")]
    out.append(
        "# ruff: noqa\n# mypy: ignore-errors\n\nimport json\n"
        "from datetime import datetime, timedelta, timezone\n\n"
        "from google.protobuf.duration_pb2 import Duration\n"
        "from google.protobuf.field_mask_pb2 import FieldMask\n"
        "from google.protobuf.timestamp_pb2 import Timestamp\n\n"
        "from . import types as t\n"
        + "".join(f"from .v1 import {file}_pb2\n" for file in FILES)
        + '''

def read_time(m):
    """Truncates to microseconds."""
    return datetime.fromtimestamp(m.seconds, timezone.utc).replace(microsecond=m.nanos // 1000)


def write_time(it):
    """Treats a time without a zone as local, as Python does."""
    whole = it.astimezone(timezone.utc)
    seconds = int((whole.replace(microsecond=0) - _EPOCH).total_seconds())
    return Timestamp(seconds=seconds, nanos=whole.microsecond * 1000)


_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Bypasses `__init__`, because every field is set afterwards.
new = object.__new__


def read_span(m):
    return timedelta(seconds=m.seconds, microseconds=m.nanos // 1000)


def write_span(it):
    seconds, rest = divmod(it, timedelta(seconds=1))
    return Duration(seconds=seconds, nanos=rest.microseconds * 1000)


def write_json(it):
    return it if isinstance(it, str) else _encoded(it)


def write_list(it):
    """Rejects sequences that are probably a mistake."""
    if isinstance(it, (str, bytes, dict)):
        raise TypeError("a list is wanted")
    return it


def write_number(it):
    """Rejects strings: one with a lone surrogate would crash the process in protobuf 4."""
    if isinstance(it, str):
        raise TypeError("a member is wanted")
    return it


def only_one(*values):
    """Raises if several members of a oneof are set. Protobuf would use the last one."""
    if len(values) - values.count(None) > 1:
        raise ValueError("only one of these is wanted")
'''
    )
    for name, _, fields in contract.messages():
        shapes = [(field.name, Shape(contract, field)) for field, _ in fields]
        pb = f"{contract.home[name]}_pb2.{name}"
        reads = "".join(f"    it.{field} = {shape.read}\n" for field, shape in shapes)
        writes = "".join(f"        {field}={shape.write},\n" for field, shape in shapes)
        out.append(f"\n\ndef read_{snake(name)}(m):\n    it = new(t.{name})\n{reads}    return it\n")
        only = "".join(
            f"    only_one({', '.join(f'it.{field}' for field in members)})\n" for members in one_of(fields)
        )
        out.append(f"\n\ndef write_{snake(name)}(it):\n{only}    return {pb}(\n{writes}    )\n")
    return "".join(out)


def calls(contract):
    out = [GENERATED.format("The methods of both clients.")]
    out.append(
        "# ruff: noqa\n# mypy: ignore-errors\n\nfrom __future__ import annotations\n\n"
        "from collections.abc import AsyncIterator, Iterator, Mapping, Sequence\n"
        "from datetime import datetime, timedelta\nfrom types import MappingProxyType\n"
        "from typing import Any, Generic, TypeVar\n\n"
        "from . import _wire as w\nfrom .types import *\nfrom .types import Bytes, Json\n"
        "from .v1 import document_pb2, memory_pb2, session_pb2\n\n\n"
        'Asked = TypeVar("Asked")\nAnswer = TypeVar("Answer")\n\n\n'
        "class Call(Generic[Asked, Answer]):\n"
        '    """A method of the contract."""\n\n'
        '    __slots__ = ("name", "path", "repeatable", "write", "request", "read", "response")\n\n'
        "    def __init__(self, path, repeatable, write, request, read, response) -> None:  # type: ignore\n"
        '        self.name, self.path = path.rsplit("/", 1)[-1], path\n'
        "        self.repeatable = repeatable\n"
        "        self.write, self.request = write, request\n"
        "        self.read, self.response = read, response\n\n\n"
    )
    messages = {name: fields for name, _, fields in contract.messages()}
    bodies = {"Sync": [], "Async": []}
    for service, method, comment in contract.calls():
        request, response = last(method.input_type), last(method.output_type)
        name = snake(method.name)
        home = contract.home[request]
        out.append(
            f'{name.upper()}: Call[{request}, {response}] = Call(\n    "/memoird.v1.{service.name}/{method.name}",\n'
            f"    {method.name in REPEATABLE},\n    w.write_{snake(request)},\n"
            f"    {home}_pb2.{request},\n    w.read_{snake(response)},\n"
            f"    {home}_pb2.{response},\n)\n"
        )
        parameters, given = [], []
        for number, (field, _) in enumerate(messages[request]):
            shape = Shape(contract, field)
            if number == POSITIONAL:
                parameters.append("*")
            first = number == 0 and shape.default == '""' and method.name not in EMPTY_FIRST
            absent = "" if first else f" = {shape.absent}"
            parameters.append(f"{field.name}: {shape.parameter}{absent}")
            given.append(f"{field.name}={field.name}")
        if len(parameters) <= POSITIONAL:
            parameters.append("*")
        parameters.append("timeout: float | None = None")
        signature = "".join(f"        {it},\n" for it in ["self", *parameters])
        made = "".join(f"            {it},\n" for it in given)
        made = f"{request}(\n{made}        )" if given else f"{request}()"
        stream = method.server_streaming
        for kind, body in bodies.items():
            asynchronous = kind == "Async"
            back = response
            if stream:
                back = f"{'AsyncIterator' if asynchronous else 'Iterator'}[{response}]"
            verb = "await " if asynchronous and not stream else ""
            start = "async def" if asynchronous and not stream else "def"
            how = "stream" if stream else "call"
            body.append(
                f"\n    {start} {name}(\n{signature}    ) -> {back}:\n{doc(comment, 8)}"
                f"        request = {made}\n"
                f"        return {verb}self._{how}({name.upper()}, request, timeout)\n"
            )
    for kind, body in bodies.items():
        asynchronous = kind == "Async"
        start = "async def" if asynchronous else "def"
        stream = "AsyncIterator" if asynchronous else "Iterator"
        out.append(
            f"\n\nclass {kind}Calls:\n"
            f'    """The calls, {"asynchronous" if asynchronous else "blocking"}."""\n\n'
            f"    {start} _call(\n        self, call: Call[Asked, Answer], request: Asked,"
            " timeout: float | None\n    ) -> Answer:\n        raise NotImplementedError\n\n"
            "    def _stream(\n        self, call: Call[Asked, Answer], request: Asked,"
            f" timeout: float | None\n    ) -> {stream}[Answer]:\n        raise NotImplementedError\n" + "".join(body)
        )
    return "".join(out)


def generated():
    """Returns the text of every generated file by its path in `src/memoird`."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        names = [f"memoird/v1/{name}.proto" for name in STUBS]
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--python_out={scratch}",
             "--include_imports", "--include_source_info",
             f"--descriptor_set_out={scratch / 'set'}", *names],
            check=True,
        )
        descriptors = descriptor_pb2.FileDescriptorSet.FromString((scratch / "set").read_bytes())
        stubs = {
            f"v1/{name}_pb2.py": (scratch / f"memoird/v1/{name}_pb2.py").read_text()
            for name in STUBS
        }
    contract = Contract(descriptors)
    return {
        **stubs,
        "v1/__init__.py": '"""The messages of the contract, as generated by protoc."""\n',
        "types.py": types(contract),
        "_wire.py": wire(contract),
        "_calls.py": calls(contract),
    }


def main():
    for name, text in generated().items():
        file = HERE / "src" / "memoird" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
