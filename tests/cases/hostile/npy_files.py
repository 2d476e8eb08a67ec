"""Hostile .npy files: the bytes, a part of the message that must come."""

import struct


def raw(text, data=b"", version=(1, 0), length=None):
    """A file with this header text."""
    text = text.encode("latin-1") if isinstance(text, str) else text
    n = len(text) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", n) + text + data


def header(descr="'<f4'", order="False", shape="(2, 3)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}   \n"


GOOD = raw(header(), bytes(range(24)))

FILES = {
    "empty": (b"", "begins with b'', not with"),
    "magic_only": (b"\x93NUMPY", "begins with b'\\x93NUMPY', not with"),
    "zip": (b"PK\x03\x04" + bytes(30), "begins with b'PK\\x03\\x04"),
    "version_3": (raw(header(), bytes(24), (3, 0)), "NPY version 3.0; 1.0 and 2.0 are supported"),
    "version_1_1": (raw(header(), bytes(24), (1, 1)), "NPY version 1.1; 1.0 and 2.0 are supported"),
    "length_past_end": (raw(header(), b"", length=999), "header of 999 bytes; the file has"),
    "length_of_4_gib": (raw(header(), b"", (2, 0), 2**32 - 1), "header of 4,294,967,295 bytes; the file has"),
    "not_a_dict": (raw("[1, 2]"), "header: '[1, 2]' is not a dict"),
    "code": (raw("{'descr': __import__('os').getcwd(), }"), "header: expected exactly descr, fortran_order and shape"),
    "nested": (raw("{" * 9000 + "}" * 9000), "header: expected exactly descr"),
    "no_shape": (raw("{'descr': '<f4', 'fortran_order': False, }"), "header: expected exactly descr"),
    "unknown_key": (raw(header()[:-6] + " 'more': True, }\n"), "header: expected exactly descr"),
    "shape_twice": (raw(header()[:-6] + " 'shape': (6,), }\n", bytes(24)), "header: shape is given twice"),
    "order_is_text": (raw(header(order="'False'"), bytes(24)), "header: fortran_order is of the wrong type"),
    "fortran": (raw(header(order="True"), bytes(24)), "header: fortran_order is True; only C order is supported"),
    "pickle": (raw(header("'|O'"), bytes(48)), "header: type '|O' is not supported"),
    "big_endian": (raw(header("'>f4'"), bytes(24)), "header: type '>f4' is not supported; did you mean '<f4'"),
    "strings": (raw(header("'<U5'"), bytes(120)), "header: type '<U5' is not supported"),
    "structured": (raw(header("[('a', '<f4')]"), bytes(24)), "header: expected exactly descr"),
    "negative_dim": (raw(header(shape="(-2, -3)"), bytes(24)), "header: expected exactly descr"),
    "integer_shape": (raw(header(shape="(6)"), bytes(24)), "header: shape (6) is not a tuple"),
    "two_commas": (raw(header(shape="(2,, 3)"), bytes(24)), "header: shape (2,, 3) is not a tuple"),
    "comma_alone": (raw(header(shape="(,)"), bytes(4)), "header: shape (,) is not a tuple"),
    "long_dim": (raw(header(shape=f"({'9' * 20},)")), "is not a tuple"),
    "overflowing_dims": (raw(header(shape=f"({2**40}, {2**40})"), bytes(24)), "the file has"),
    "many_dims": (raw(header(shape=f"({'1, ' * 65})"), bytes(4)), "header: 65 dimensions; at most 64 are supported"),
    "data_cut_short": (raw(header(), bytes(23)), "<f4[2, 3] takes 24 bytes from byte"),
    "trailing_byte": (raw(header(), bytes(25)), "<f4[2, 3] takes 24 bytes from byte"),
    "unknown_bytes": (raw(header("'<V1'"), bytes(6)), "type '<V1' is no known dtype without a metadata.json"),
}

# Headers that other writers produce and the format allows.
ALLOWED = {
    "other_order": raw("{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}\n", bytes(range(24))),
    "double_quotes": raw('{"descr": "<f4", "fortran_order": False, "shape": (2,3)}', bytes(range(24))),
    "version_2": raw(header(), bytes(range(24)), (2, 0)),
}
