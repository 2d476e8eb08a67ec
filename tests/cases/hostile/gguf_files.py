"""Hostile GGUF files: each is the good one with one thing wrong. Each entry: the bytes, a part of the message."""

import struct

U32, F32, STRING, ARRAY, BOOL = 4, 6, 8, 9, 7


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def kv(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def info(name="a", dims=(4, 3), kind=0, offset=0):
    """A tensor's entry; `dims` as in the file, fastest first."""
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


ARCH = kv("general.architecture", STRING, text("llama"))
ALIGN = kv("general.alignment", U32, struct.pack("<I", 64))


TWO = (info(), info("b", (32, 2), 8, 64))
DATA = bytes(range(48)) + bytes(16) + bytes(range(68)) + bytes(28)


def raw(kvs=(ARCH,), infos=TWO, data=DATA, magic=b"GGUF", version=3, counts=None):
    """A file: F32 [3, 4] and Q8_0 [2, 32] unless told otherwise."""
    tensors, entries = counts or (len(infos), len(kvs))
    head = magic + struct.pack("<IQQ", version, tensors, entries) + b"".join(kvs) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data


def array(kind, count, items=b""):
    return raw([kv("k", ARRAY, struct.pack("<IQ", kind, count) + items)])


def second(**more):
    """A file whose second tensor has another entry."""
    return raw(infos=[info(), info(**{"name": "b", "dims": (32, 2), "kind": 8, "offset": 64, **more})])


GOOD = raw()
BIG = 2**63

FILES = {
    "empty": (b"", "header at byte 0 needs 4 bytes, of which the file has 0"),
    "magic": (raw(magic=b"GGML"), "begins with b'GGML'"),
    "magic_only": (b"GGUF", "header at byte 4 needs 4 bytes"),
    "version_1": (raw(version=1), "GGUF file of version 1; 2 and 3 are supported"),
    "version_0": (raw(version=0), "GGUF file of version 0"),
    "big_endian": (b"GGUF" + struct.pack(">I", 3) + bytes(100), "GGUF file big-endian, which is not supported"),
    "many_tensors": (raw(counts=(2**60, 1)), f"states {2**60} tensors, too many"),
    "many_entries": (raw(counts=(2, 2**64 - 1)), f"states {2**64 - 1} metadata entries, too many"),
    "one_tensor_more": (raw(counts=(3, 1)), "has 33619968 dimensions; at most 4"),
    "one_entry_more": (raw(counts=(2, 2)), "tensor name before byte 92 of"),
    "long_key": (raw([text("k" * 70000) + struct.pack("<I", BOOL) + b"\1"]), "of 70000 bytes; at most 65,535"),
    "key_past_end": (raw([struct.pack("<Q", 60000) + b"k"], data=b"" * 9), "needs 60000 bytes, of which the file has"),
    "string_past_end": (raw([kv("k", STRING, struct.pack("<Q", BIG))]), f"of {BIG} bytes; at most 100,000,000"),
    "string_longer": (raw([kv("k", STRING, struct.pack("<Q", 9999) + b"x")]), "metadata 'k' at byte"),
    "key_not_utf8": (raw([kv(b"\xff\xfe", BOOL, b"\1")]), "metadata key at byte 32 is not UTF-8"),
    "string_not_utf8": (raw([kv("k", STRING, text(b"\xff"))]), "metadata 'k' at byte 45 is not UTF-8"),
    "duplicate_key": (raw([ARCH, ARCH]), "metadata key 'general.architecture' is there twice"),
    "value_type": (raw([kv("k", 13, bytes(8))]), "metadata 'k' has value type 13; 0 to 12 are known"),
    "item_type": (array(99, 1, bytes(8)), "metadata 'k' has value type 99"),
    "array_of_arrays": (array(ARRAY, 1, bytes(12)), "is an array of arrays"),
    "huge_array": (array(U32, 2**61), f"metadata 'k' at byte 49 needs {2**63} bytes"),
    "huge_array_of_strings": (array(STRING, 2**40), f"states {2**40} strings (metadata 'k')"),
    "bool_of_two": (raw([kv("k", BOOL, b"\2")]), "metadata 'k' is bool and holds 2"),
    "bools_of_two": (array(BOOL, 3, b"\0\1\xff"), "is bool and holds 255"),
    "alignment_zero": (raw([kv("general.alignment", U32, bytes(4))]), "general.alignment is uint32 0"),
    "alignment_odd": (raw([kv("general.alignment", U32, struct.pack("<I", 48))]), "general.alignment is uint32 48"),
    "alignment_text": (raw([kv("general.alignment", STRING, text("32"))]), "general.alignment is string '32'"),
    "alignment_huge": (raw([kv("general.alignment", U32, struct.pack("<I", 2**31))]), "is cut short"),
    "dimensions": (raw(infos=[info(dims=(1,) * 5)]), "tensor 'a' has 5 dimensions; at most 4"),
    "dimensions_huge": (raw(infos=[text("a") + struct.pack("<I", 2**32 - 1)]), "has 4294967295 dimensions"),
    "elements_overflow": (raw(infos=[info(dims=(2**40, 2**40))]), "overflows the size of any file"),
    "elements_wrap": (raw(infos=[info(dims=(2**32, 2**32, 1))]), "overflows the size of any file"),
    "zero_hides_overflow": (raw(infos=[info(dims=(2**40, 2**40, 0))]), "overflows the size of any file"),
    "type_unknown": (raw(infos=[info(kind=4)]), "tensor 'a' has type 4, which no ggml type known here has"),
    "type_huge": (raw(infos=[info(kind=2**32 - 1)]), "has type 4294967295"),
    "half_block": (raw(infos=[info(dims=(48, 2), kind=8)]), "blocks of 32 elements, which do not divide rows of (48,)"),
    "scalar_of_blocks": (raw(infos=[info(dims=(), kind=8)]), "which do not divide rows of none"),
    "name_twice": (second(name="a"), "tensor 'a' is there twice"),
    "name_not_utf8": (raw(infos=[info(b"\xff")]), "tensor name at byte"),
    "name_past_end": (raw(infos=[struct.pack("<Q", BIG)]), f"of {BIG} bytes; at most 65,535"),
    "overlap": (second(offset=32), "tensor 'b' overlaps tensor 'a': it begins at data byte 32"),
    "same_place": (second(dims=(4, 3), kind=0, offset=0), "tensor 'b' overlaps tensor 'a'"),
    "gap": (second(offset=96), "tensor 'b' leaves a gap after tensor 'a'"),
    "first_late": (raw(infos=[info(offset=32)]), "leaves a gap after the start of the data"),
    "offset_wraps": (raw(infos=[info(offset=2**64 - 32)]), "leaves a gap"),
    "unaligned": (second(offset=48), "overlaps"),
    "larger_alignment": (raw([ARCH, ALIGN], infos=[info(), info("b", (32, 2), 8, 96)]), "leaves a gap"),
    "data_missing": (raw(data=b""), "tensor 'a' of F32[3, 4] is cut short"),
    "data_short": (raw(data=bytes(131)), "tensor 'b' of Q8_0[2, 34] is cut short: its 68 bytes begin at byte"),
}  # fmt: skip
