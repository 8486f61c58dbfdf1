"""Messages of a ``.proto`` file, without ``protoc``: what its plain fields say."""

import re
from typing import Any

_TYPES = {"double": 1, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "uint32": 13}
_TOKEN = re.compile(r'"[^"]*"|[\w.]+|[^\s\w]')


def messages(text: str) -> dict[str, Any]:
    """Name -> class of each message of a proto3 file; messages with maps are left out."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    text = re.sub(r"//.*", "", text)
    file = descriptor_pb2.FileDescriptorProto(name="tool.proto", syntax="proto3")
    file.package = re.search(r"package ([\w.]+);", text)[1]
    tokens = _TOKEN.findall(text[text.index("message ") :])
    while tokens:
        if tokens.pop(0) == "message":
            message = _message(tokens, f".{file.package}.")
            if message is not None:
                file.message_type.append(message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{file.package}.{message.name}")
        )
        for message in file.message_type
    }


def _message(tokens: list[str], scope: str) -> Any | None:
    """The message whose name comes first, up to its closing bracket."""
    from google.protobuf import descriptor_pb2

    message = descriptor_pb2.DescriptorProto(name=tokens.pop(0))
    inner = f"{scope}{message.name}."
    depth, has_map, oneof = 0, False, False
    while True:
        token = tokens.pop(0)
        if token == "message":
            message.nested_type.append(_message(tokens, inner))
        elif token == "oneof":
            message.oneof_decl.add(name=tokens[0])
            oneof = True
        elif token == "map":
            has_map = True
            del tokens[: tokens.index(";")]
        elif token == "{":
            depth += 1
        elif token == "}":
            depth, oneof = depth - 1, False
            if not depth:
                return None if has_map else message
        elif tokens[1:2] == ["="] or token == "repeated":
            repeated = token == "repeated"
            kind = tokens.pop(0) if repeated else token
            name, number = tokens[0], int(tokens[2])
            field = message.field.add(name=name, number=number, label=3 if repeated else 1)
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                nested = {one.name for one in message.nested_type}
                field.type, field.type_name = 11, (inner if kind in nested else scope) + kind
            if oneof:
                field.oneof_index = len(message.oneof_decl) - 1
            del tokens[: tokens.index(";")]
