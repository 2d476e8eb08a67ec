"""Hostile safetensors files. Each entry: the bytes, a part of the message that must come, and the package's verdict.

`STRICTER` is the complete list of what we refuse and the `safetensors` package (0.8) accepts; everything else in
`FILES` is refused by both.
"""

import json
import struct

MAX_HEADER_NBYTES = 100_000_000


def entry(dtype="F32", shape=(2, 3), begin=0, end=24):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def raw(header, data=b""):
    """A file with these header bytes (or this JSON value) and this data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(text_of_entry, data=bytes(24)):
    """A file whose only tensor `a` has this JSON text."""
    return raw(b'{"a":%s}' % text_of_entry.encode(), data)


def fields(dtype='"F32"', shape="[2,3]", offsets="[0,24]", more=""):
    return f'{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}{more}}}'


GOOD = raw({"__metadata__": {"format": "pt"}, "a": entry(), "b": entry("BF16", (5,), 24, 34)}, bytes(range(34)))
GOOD_TEXT = b'{"a":%s}' % fields().encode()

FILES = {
    "empty": (b"", "0 bytes are too few"),
    "seven_bytes": (bytes(7), "7 bytes are too few"),
    "length_only": (struct.pack("<Q", 0), "header begins with b''"),
    "length_past_end": (struct.pack("<Q", 3) + b"{}", "header of 3 bytes does not fit in a file of 10 bytes"),
    "length_over_limit": (struct.pack("<Q", MAX_HEADER_NBYTES + 1) + b"{}", "header of 100,000,001 bytes; at most"),
    "length_of_2_to_64": (b"\xff" * 8 + b"{}", "header of 18,446,744,073,709,551,615 bytes; at most"),
    "length_big_endian": (struct.pack(">Q", 2) + b"{}", "header of 144,115,188,075,855,872 bytes; at most"),
    "not_utf8": (raw(b'{"\xff":1}'), "not UTF-8 at byte 2"),
    "utf8_surrogate": (raw(b'{"\xed\xa0\x80":1}'), "not UTF-8 at byte 2"),
    "byte_order_mark": (raw(b"\xef\xbb\xbf{}"), "header begins with"),
    "not_json": (raw(b'{"a" 1}'), "not JSON at character 5"),
    "cut_json": (raw(b'{"a":{'), "header ends with b'{'"),
    "second_value": (raw(b"{}{}"), "not JSON at character 2"),
    "array": (raw(b"[]"), "header begins with b'['"),
    "number": (raw(b"12345678"), "header begins with b'1'"),
    "nul_after": (raw(GOOD_TEXT + b"\0\0", bytes(24)), "header ends with b'\\x00'"),
    "control_in_string": (raw(b'{"a\nb":1}'), "not JSON at character 3"),
    "lone_surrogate": (raw(b'{"\\ud800":%s}' % fields().encode(), bytes(24)), "lone surrogate"),
    "nan": (one(fields(shape="[NaN]")), "NaN is not JSON"),
    "infinity": (one(fields(offsets="[0,Infinity]")), "Infinity is not JSON"),
    "minus_infinity": (one(fields(offsets="[-Infinity,0]")), "-Infinity is not JSON"),
    "deep_arrays": (raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested too deeply"),
    "deep_objects": (raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "nested too deeply"),
    "long_integer": (one(fields(shape=f"[{'9' * 5000}]")), "integer '999999999999999999999999' is out of range"),
    "metadata_of_numbers": (raw({"__metadata__": {"epoch": 3}}), "__metadata__ must map strings to strings"),
    "metadata_list": (raw({"__metadata__": ["pt"]}), "__metadata__ must map strings to strings"),
    "metadata_tensor": (raw({"__metadata__": entry()}, bytes(24)), "__metadata__ must map strings to strings"),
    "metadata_twice": (raw(b'{"__metadata__":{},"__metadata__":{}}'), "duplicate key '__metadata__'"),
    "field_twice": (one(fields(more=',"dtype":"F32"')), "duplicate key 'dtype'"),
    "entry_is_null": (one("null"), "tensor 'a': must have exactly the fields dtype, shape, data_offsets; got NoneType"),
    "entry_is_text": (one('"F32"'), "tensor 'a': must have exactly the fields"),
    "no_dtype": (one('{"shape":[2,3],"data_offsets":[0,24]}'), "got fields shape, data_offsets"),
    "no_shape": (one('{"dtype":"F32","data_offsets":[0,24]}'), "got fields dtype, data_offsets"),
    "no_offsets": (one('{"dtype":"F32","shape":[2,3]}'), "got fields dtype, shape"),
    "unknown_dtype": (one(fields(dtype='"BF17"')), "dtype 'BF17' is unknown; did you mean 'BF16'"),
    "lower_case_dtype": (one(fields(dtype='"f32"')), "dtype 'f32' is unknown; did you mean 'F32'"),
    "dtype_is_number": (one(fields(dtype="32")), "dtype 32 is unknown"),
    "dtype_is_null": (one(fields(dtype="null")), "dtype None is unknown"),
    "shape_is_number": (one(fields(shape="6")), "shape must be a list of non-negative integers, got 6"),
    "shape_is_null": (one(fields(shape="null")), "shape must be a list"),
    "negative_dim": (one(fields(shape="[-2,-3]")), "shape must be a list of non-negative integers, got [-2, -3]"),
    "negative_zero_dim": (one(fields(shape="[-0]", offsets="[0,0]"), b""), "integer '-0' is out of range"),
    "float_dim": (one(fields(shape="[2.0,3]")), "shape must be a list of non-negative integers, got [2.0, 3]"),
    "exponent_dim": (one(fields(shape="[6e0]")), "shape must be a list of non-negative integers, got [6.0]"),
    "bool_dim": (one(fields(shape="[true,6]")), "shape must be a list of non-negative integers, got [True, 6]"),
    "text_dim": (one(fields(shape='["2",3]')), "shape must be a list of non-negative integers, got ['2', 3]"),
    "nested_dim": (one(fields(shape="[[2,3]]")), "shape must be a list of non-negative integers, got [[2, 3]]"),
    "dim_of_2_to_64": (one(fields(shape=f"[{2**64}]")), "shape must be a list of non-negative integers"),
    "product_overflows": (one(fields(shape=f"[{2**32},{2**32},3]")), "overflows the size of any file"),
    "product_wraps_to_zero": (
        one(fields(shape=f"[{2**62},4]", offsets="[0,0]"), b""),
        "overflows the size of any file",
    ),
    "one_offset": (one(fields(offsets="[24]")), "data_offsets must be two non-negative integers, got [24]"),
    "three_offsets": (one(fields(offsets="[0,24,24]")), "data_offsets must be two non-negative integers"),
    "float_offset": (one(fields(offsets="[0,24.0]")), "data_offsets must be two non-negative integers, got [0, 24.0]"),
    "bool_offset": (one(fields(offsets="[false,24]")), "data_offsets must be two non-negative integers"),
    "negative_offset": (one(fields(offsets="[-24,0]")), "data_offsets must be two non-negative integers, got [-24, 0]"),
    "offsets_are_null": (one(fields(offsets="null")), "data_offsets must be two non-negative integers, got None"),
    "offset_of_2_to_64": (one(fields(offsets=f"[0,{2**64}]")), "data_offsets must be two non-negative integers"),
    "offsets_backwards": (one(fields(offsets="[24,0]")), "data_offsets [24, 0] end before they begin"),
    "too_short_for_shape": (
        one(fields(offsets="[0,20]"), bytes(20)),
        "takes 24 bytes, its data_offsets [0, 20] span 20",
    ),
    "too_long_for_shape": (
        one(fields(offsets="[0,28]"), bytes(28)),
        "takes 24 bytes, its data_offsets [0, 28] span 28",
    ),
    "half_a_byte": (one(fields('"F4"', "[3]", "[0,1]"), bytes(1)), "takes 12 bits, which do not fill whole bytes"),
    "six_bits": (one(fields('"F6_E2M3"', "[2,3]", "[0,5]"), bytes(5)), "takes 36 bits, which do not fill whole bytes"),
    "hole_at_start": (one(fields(offsets="[8,32]"), bytes(32)), "leaves 8 bytes unindexed after the start of the data"),
    "hole": (raw({"a": entry(), "b": entry(begin=28, end=52)}, bytes(52)), "leaves 4 bytes unindexed after tensor 'a'"),
    "overlap": (raw({"a": entry(), "b": entry(begin=20, end=44)}, bytes(44)), "tensor 'b' overlaps tensor 'a'"),
    "same_bytes_twice": (raw({"a": entry(), "b": entry()}, bytes(24)), "tensor 'b' overlaps tensor 'a'"),
    "empty_inside_other": (
        raw({"a": entry(), "b": entry("U8", (0,), 8, 8)}, bytes(24)),
        "tensor 'b' overlaps tensor 'a'",
    ),
    "data_cut_short": (
        one(fields(), bytes(23)),
        "the data is cut short: the header indexes 24 data bytes, the file has 23",
    ),
    "no_data": (one(fields(), b""), "the data is cut short: the header indexes 24 data bytes, the file has 0"),
    "trailing_byte": (one(fields(), bytes(25)), "1 bytes follow the last tensor"),
    "trailing_only": (raw({}, bytes(1)), "1 bytes follow the last tensor"),
}

STRICTER = {
    # The README's format section: "The header MUST begin with a `{`"; "MAY be trailing padded with whitespace (0x20)".
    "space_before": (raw(b" " + GOOD_TEXT, bytes(24)), "header begins with b' '"),
    "newline_after": (raw(GOOD_TEXT + b"\n", bytes(24)), "header ends with b'\\n'"),
    "tab_after": (raw(GOOD_TEXT + b" \t", bytes(24)), "header ends with b'\\t'"),
    # "Duplicate keys are disallowed. Not all parsers may respect this."
    "tensor_twice": (raw(b'{"a":%s,"a":%s}' % ((fields().encode(),) * 2), bytes(24)), "duplicate key 'a'"),
    "metadata_key_twice": (raw(b'{"__metadata__":{"k":"1","k":"2"}}'), "duplicate key 'k'"),
    # "a special key `__metadata__` is allowed to contain free form string-to-string map"
    "metadata_null": (raw(b'{"__metadata__":null}'), "__metadata__ must map strings to strings"),
    # The text knows three fields of an object, and no other way to give them.
    "unknown_field": (one(fields(more=',"strides":[3,1]')), "got fields dtype, shape, data_offsets, strides"),
    "entry_is_array": (
        one('["F32",[2,3],[0,24]]'),
        "must have exactly the fields dtype, shape, data_offsets; got list",
    ),
    # No NumPy array has this shape.
    "zero_hides_overflow": (
        one(fields(shape=f"[0,{2**61},3]", offsets="[0,0]"), b""),
        "overflows the size of any file",
    ),
    "dim_of_2_to_63": (one(fields(shape=f"[0,{2**63}]", offsets="[0,0]"), b""), "shape must be a list of non-negative"),
    "sixty_five_dims": (one(fields(shape=str([1] * 64 + [6]))), "65 dimensions; at most 64 are supported"),
}
