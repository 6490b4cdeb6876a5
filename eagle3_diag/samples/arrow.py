"""Integer lists out of a dataset saved by Hugging Face ``datasets`` (``save_to_disk``), without pyarrow.

``state.json`` names the files; each is an Arrow IPC stream (or file) of record batches. Only the messages' small
headers are read; a row's values come from a memory map. Sources: the Arrow columnar format, "Serialization and
Interprocess Communication", its ``Message.fbs`` and ``Schema.fbs``, and the FlatBuffers binary layout that those are
written in.
"""

from __future__ import annotations

import bisect
import json
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from eagle3_diag.errors import InputError

# Schema.fbs, union Type.
_INT, _BOOL, _LIST, _STRUCT, _FIXED_SIZE_LIST, _MAP, _LARGE_LIST = 2, 6, 12, 13, 16, 17, 21
#: Buffers of a column's own node, by type (Null has none; a list's values are its child's).
_BUFFERS = {1: 0, _INT: 2, 3: 2, 4: 3, 5: 3, _BOOL: 2, 7: 2, 8: 2, 9: 2, 10: 2, 11: 2, _LIST: 2, _STRUCT: 1, 15: 2}
_BUFFERS |= {_FIXED_SIZE_LIST: 1, _MAP: 2, 18: 2, 19: 3, 20: 3, _LARGE_LIST: 2}
_SCHEMA, _RECORD_BATCH = 1, 3
_MAX_DEPTH = 32


class _Malformed(Exception):
    """The bytes are not what the format promises."""


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A FlatBuffers table at ``position`` of ``data``; a field that is absent reads as its default."""

    data: memoryview
    position: int

    def _field(self, index: int) -> int | None:
        vtable = self.position - struct.unpack_from("<i", self.data, self.position)[0]
        if vtable < 0:
            raise _Malformed("a table points outside the file")
        size = struct.unpack_from("<H", self.data, vtable)[0]
        if 4 + 2 * index + 2 > size:
            return None
        offset = struct.unpack_from("<H", self.data, vtable + 4 + 2 * index)[0]
        return self.position + offset if offset else None

    def number(self, index: int, code: str, default: int = 0) -> int:
        at = self._field(index)
        return default if at is None else int(struct.unpack_from("<" + code, self.data, at)[0])

    def table(self, index: int) -> _Table | None:
        at = self._field(index)
        return None if at is None else _Table(data=self.data, position=self._follow(at))

    def vector(self, index: int, item_size: int) -> tuple[int, int]:
        """Position of the first item, and how many there are."""
        at = self._field(index)
        if at is None:
            return 0, 0
        start = self._follow(at)
        count = struct.unpack_from("<I", self.data, start)[0]
        if start + 4 + count * item_size > len(self.data):
            raise _Malformed("a vector runs past its message")
        return start + 4, count

    def tables(self, index: int) -> list[_Table]:
        start, count = self.vector(index, 4)
        return [_Table(data=self.data, position=self._follow(start + 4 * i)) for i in range(count)]

    def text(self, index: int) -> str:
        start, count = self.vector(index, 1)
        return bytes(self.data[start : start + count]).decode("utf-8", "replace")

    def _follow(self, at: int) -> int:
        return at + int(struct.unpack_from("<I", self.data, at)[0])


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A list-of-integers column: where its nodes and buffers begin in every record batch's lists."""

    node: int
    buffer: int
    offset_code: str
    value_code: str  # a struct code, or "?" for bits


@dataclass(frozen=True, kw_only=True)
class _Batch:
    rows: int
    body: int
    body_length: int
    buffers: tuple[tuple[int, int], ...]
    null_counts: tuple[int, ...]


class _ArrowFile:
    """One Arrow file: its columns of integer lists and where its record batches lie."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = memoryview(self._map)
        self.columns: dict[str, _Column] = {}
        self._batches: list[_Batch] = []
        self._starts: list[int] = []
        self.rows = 0
        self._scan()

    def _scan(self) -> None:
        position = 8 if bytes(self._data[:6]) == b"ARROW1" else 0
        while position + 8 <= len(self._data):
            marker, length = struct.unpack_from("<Ii", self._data, position)
            if marker != 0xFFFFFFFF:
                raise _Malformed("a message does not begin with the continuation marker")
            position += 8
            if length == 0:
                return
            if length < 0 or position + length > len(self._data):
                raise _Malformed("a message's header is cut off")
            header = self._data[position : position + length]
            message = _Table(data=header, position=struct.unpack_from("<I", header, 0)[0])
            body, body_length = position + length, message.number(3, "q")
            if body_length < 0 or body + body_length > len(self._data):
                raise _Malformed("a record batch is cut off")
            content = message.table(2)
            kind = message.number(1, "B")
            if content is not None and kind == _SCHEMA:
                self._read_schema(content)
            elif content is not None and kind == _RECORD_BATCH:
                self._read_batch(content, body, body_length)
            position = body + body_length

    def _read_schema(self, schema: _Table) -> None:
        if schema.number(0, "h"):
            raise _Malformed("the file is big-endian, which is not supported")
        node = buffer = 0
        for field in schema.tables(1):
            column = _list_column(field, node, buffer)
            if column is not None:
                self.columns[field.text(0)] = column
            nodes, buffers = _extent(field, _MAX_DEPTH)
            node, buffer = node + nodes, buffer + buffers

    def _read_batch(self, batch: _Table, body: int, body_length: int) -> None:
        if batch.table(3) is not None:
            raise _Malformed("record batches are compressed, which is not supported")
        rows = batch.number(0, "q")
        if rows < 0:
            raise _Malformed("a record batch has a negative length")
        start, count = batch.vector(1, 16)
        nulls = tuple(struct.unpack_from("<q", batch.data, start + 16 * i + 8)[0] for i in range(count))
        start, count = batch.vector(2, 16)
        buffers = tuple(struct.unpack_from("<qq", batch.data, start + 16 * i) for i in range(count))
        self._starts.append(self.rows)
        self._batches.append(_Batch(rows=rows, body=body, body_length=body_length, buffers=buffers, null_counts=nulls))
        self.rows += rows

    def row(self, index: int, name: str) -> list[int]:
        column = self.columns.get(name)
        if column is None:
            raise _Malformed(f"there is no column {name!r} of integer lists")
        which = bisect.bisect_right(self._starts, index) - 1
        batch, local = self._batches[which], index - self._starts[which]
        nulls = batch.null_counts[column.node : column.node + 2]
        if len(nulls) < 2 or any(nulls):
            raise _Malformed(f"column {name!r} holds nulls")
        offsets = self._buffer(batch, column.buffer + 1)
        size = struct.calcsize(column.offset_code)
        begin, end = struct.unpack_from(f"<2{column.offset_code}", offsets, local * size)
        values = self._buffer(batch, column.buffer + 3)
        if begin < 0 or end < begin:
            raise _Malformed(f"column {name!r} has offsets that go backwards")
        if column.value_code == "?":
            if end > 8 * len(values):
                raise _Malformed(f"column {name!r} is cut off")
            return [values[i >> 3] >> (i & 7) & 1 for i in range(begin, end)]
        width = struct.calcsize(column.value_code)
        if end * width > len(values):
            raise _Malformed(f"column {name!r} is cut off")
        return list(struct.unpack_from(f"<{end - begin}{column.value_code}", values, begin * width))

    def _buffer(self, batch: _Batch, index: int) -> memoryview:
        if index >= len(batch.buffers):
            raise _Malformed("a record batch has fewer buffers than its schema")
        offset, length = batch.buffers[index]
        if offset < 0 or length < 0 or offset + length > batch.body_length:
            raise _Malformed("a buffer runs past its record batch")
        return self._data[batch.body + offset : batch.body + offset + length]


def _list_column(field: _Table, node: int, buffer: int) -> _Column | None:
    kind = field.number(2, "B")
    children = field.tables(5)
    if kind not in (_LIST, _LARGE_LIST) or len(children) != 1 or field.table(4) is not None:
        return None
    item, item_kind = children[0].table(3), children[0].number(2, "B")
    if item_kind == _BOOL:
        code = "?"
    elif item_kind == _INT and item is not None:
        code = {8: "b", 16: "h", 32: "i", 64: "q"}.get(item.number(0, "i"), "")
        code = code if item.number(1, "B") else code.upper()
    else:
        return None
    if not code:
        return None
    return _Column(node=node, buffer=buffer, offset_code="i" if kind == _LIST else "q", value_code=code)


def _extent(field: _Table, depth: int) -> tuple[int, int]:
    """How many nodes and buffers a column and its children take in a record batch."""
    kind = field.number(2, "B")
    if field.table(4) is not None:  # dictionary-encoded: the batch holds its integer codes
        return 1, 2
    if kind not in _BUFFERS or depth == 0:
        raise _Malformed(f"column {field.text(0)!r} has a type that is not supported ({kind})")
    nodes, buffers = 1, _BUFFERS[kind]
    for child in field.tables(5):
        child_nodes, child_buffers = _extent(child, depth - 1)
        nodes, buffers = nodes + child_nodes, buffers + child_buffers
    return nodes, buffers


class ArrowDataset:
    """Rows of a saved dataset, counted through all of its files."""

    def __init__(self, directory: Path, files: Sequence[Path]) -> None:
        self.directory = directory
        self._files = [_ArrowFile(path) for path in files]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self._files)

    def row(self, index: int, columns: Sequence[str]) -> dict[str, list[int]]:
        """The named list columns of one row. Raises InputError when there is no such row or column."""
        local = index
        for file in self._files:
            if local < file.rows:
                try:
                    return {name: file.row(local, name) for name in columns}
                except (_Malformed, struct.error) as error:
                    raise _unusable(self.directory, error) from None
            local -= file.rows
        raise InputError(
            f"{self.directory}: the Arrow dataset has {self.rows} rows, but row {index} was asked for; hidden states "
            "and dataset do not belong together."
        )


def open_dataset(directory: Path) -> ArrowDataset | None:
    """The dataset saved in ``directory``, or None where there is none. Raises InputError for a damaged one."""
    try:
        changed = (directory / "state.json").stat().st_mtime_ns
    except OSError:
        return None
    return _open(directory, changed)


@lru_cache(maxsize=4)
def _open(directory: Path, changed: int) -> ArrowDataset:
    try:
        state = json.loads((directory / "state.json").read_bytes())
        if state.get("_indices_files") or state.get("_indices_data_files"):
            raise _Malformed("it was saved with an indices mapping; flatten_indices() and save it again")
        files = [directory / str(entry["filename"]) for entry in state["_data_files"]]
        return ArrowDataset(directory, files)
    except (_Malformed, struct.error, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unusable(directory, error) from None


def _unusable(directory: Path, error: Exception) -> InputError:
    return InputError(
        f"{directory}: the Arrow dataset beside the hidden states cannot be read ({error}); save it again."
    )
