"""What tests of native kernels need of a machine."""

import shutil

import pytest

from plugins.kernels.native import compiler

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, compiler.COMPILERS)), reason="no C++ compiler")
