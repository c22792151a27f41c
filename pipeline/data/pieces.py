"""The pieces of a SentencePiece model put in order: special ones at ids 0 to 3, the others, tags, and filling.

How text is cut depends on the scores of pieces and not on their ids, so the model goes on cutting as it did. What is
added are control pieces, which no text is cut into and which stand for no text.

A model is a message of Protocol Buffers: fields one after the other, each a key, perhaps a length, and content. Field 1
is a piece (1 its text, 2 its score, 3 its type), field 2 the trainer's settings; of a setting that comes twice, the
last counts. Read like this since sentencepiece's own classes refuse every protobuf older than the one they were made
with.
"""

import itertools
import struct
from collections.abc import Iterator, Sequence

import sentencepiece

SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
"""What they are called in models of ours, by id."""

ID_FIELDS, NAME_FIELDS, SIZE_FIELD = (43, 40, 41, 42), (48, 45, 46, 47), 4
"""Of the trainer's settings: ids and texts of pad, unk, bos and eos, and the number of pieces."""

KIND_FIELD, KINDS = 3, ("", "unigram", "bpe", "word", "char")
"""Likewise, how text is cut."""

CONTROL = 3
"""Type of a piece."""


def special_ids(processor: sentencepiece.SentencePieceProcessor) -> tuple[int, ...]:
    """Of pad, unk, bos and eos; -1 for what the model lacks."""
    return processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()


def kind(model: bytes) -> str:
    """``unigram``, ``bpe``, ``word`` or ``char``."""
    settings = b"".join(content for number, content in _fields(model) if number == 2)
    return KINDS[dict(_fields(settings)).get(KIND_FIELD, 1)]


def types(model: bytes) -> list[int]:
    """The type of each piece; 1 is a normal one."""
    return [dict(_fields(content)).get(3, 1) for number, content in _fields(model) if number == 1]


def completed(model: bytes, tags: Sequence[str], multiple_of: int) -> bytes:
    """The model with special pieces where they belong, with tags, and with as many pieces as a multiple of that; the
    same bytes where nothing is missing.

    A piece that is called like a tag becomes one: typed, it is cut like other text.
    """
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = special_ids(processor)
    names = processor.id_to_piece(list(range(processor.vocab_size())))
    free = (name for name in map("<filler{}>".format, itertools.count()) if name not in names)
    pieces = [content for number, content in _fields(model) if number == 1]
    special_names = [
        names[id] if id >= 0 else name if name not in names else next(free)
        for id, name in zip(ids, SPECIAL_PIECES, strict=True)
    ]
    ordered = [pieces[id] if id >= 0 else _control(name) for id, name in zip(ids, special_names, strict=True)]
    for id, name in enumerate(names):
        if id not in ids:
            ordered.append(pieces[id] + (_number(3, CONTROL) if name in tags else b""))
    ordered += [_control(tag) for tag in tags if tag not in names]
    ordered += [_control(next(free)) for _ in range(-len(ordered) % multiple_of)]
    if ordered == pieces:
        return model
    settings = _number(SIZE_FIELD, len(ordered))
    settings += b"".join(_number(field, id) for id, field in enumerate(ID_FIELDS))
    settings += b"".join(_field(field, name.encode()) for field, name in zip(NAME_FIELDS, special_names, strict=True))
    others = [_field(number, content) for number, content in _fields(model) if number != 1]
    return b"".join([*(_field(1, piece) for piece in ordered), *others, _field(2, settings)])


def _control(name: str) -> bytes:
    return _field(1, name.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", 0) + _number(3, CONTROL)


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Number and content of each field."""
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        if key & 7 == 0:
            content, place = _read_varint(message, place)
            yield key >> 3, content
            continue
        size, place = _read_varint(message, place) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], place)
        yield key >> 3, message[place : place + size]
        place += size


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    """A number, seven bits a byte, and where it ends."""
    number = shift = 0
    while True:
        byte = message[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return number, place


def _varint(number: int) -> bytes:
    written = []
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content
