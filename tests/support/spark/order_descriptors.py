"""A message of Protobuf without ``protoc``: the descriptors that it would write, and the class that they make."""

from __future__ import annotations

from typing import Any

__all__ = ["MESSAGE", "order_class", "order_descriptors"]

MESSAGE = "shop.Order"


def order_descriptors() -> bytes:
    """A set of descriptors with ``shop.Order`` and all that it imports."""
    from google.protobuf import timestamp_pb2, wrappers_pb2
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

    kinds = FieldDescriptorProto
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="item", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_BOOL, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    order.oneof_decl.add(name="_floor")
    fields: list[tuple[str, int, str | None, bool]] = [
        ("number", kinds.TYPE_INT64, None, False),
        ("price", kinds.TYPE_DOUBLE, None, False),
        ("photo", kinds.TYPE_BYTES, None, False),
        ("state", kinds.TYPE_ENUM, ".shop.State", False),
        ("at", kinds.TYPE_MESSAGE, ".google.protobuf.Timestamp", False),
        ("limit", kinds.TYPE_MESSAGE, ".google.protobuf.Int64Value", False),
        ("lines", kinds.TYPE_MESSAGE, ".shop.Line", True),
        ("counts", kinds.TYPE_MESSAGE, ".shop.Order.CountsEntry", True),
        ("floor", kinds.TYPE_INT32, None, False),
    ]
    for number, (name, kind, of, repeated) in enumerate(fields, 1):
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        field: Any = order.field.add(name=name, number=number, type=kind, label=label, type_name=of)
        if name == "floor":
            field.proto3_optional, field.oneof_index = True, 0
    files = FileDescriptorSet()
    for imported in (timestamp_pb2, wrappers_pb2):
        imported.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.add().CopyFrom(file)
    return files.SerializeToString()


def order_class() -> Any:
    """The class of ``shop.Order``, as ``protoc`` makes it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(order_descriptors()).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(MESSAGE))
