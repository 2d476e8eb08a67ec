"""What a wheel carries beside what pyproject.toml says: with WEIGHTMILL_PREBUILT=1, the native kernels, compiled.

`WEIGHTMILL_PREBUILT=1 pip wheel --no-build-isolation --no-deps .`, in an environment that has the project's
dependencies: handlers are compiled with jaxlib's headers. The wheel is then one for this kind of machine.
"""

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class Build(build_py):
    def run(self) -> None:
        super().run()
        sys.path.insert(0, str(Path(__file__).parent))
        from plugins.kernels.native import build

        build.ship(Path(self.build_lib) / "plugins/kernels/native" / build.SHIPPED.name)


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """Any Python, as libraries are loaded with ctypes; this platform."""
        return "py3", "none", super().get_tag()[2]


class OfOnePlatform(Distribution):
    def has_ext_modules(self) -> bool:
        return True


if os.environ.get("WEIGHTMILL_PREBUILT", "0") not in ("", "0"):
    setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=OfOnePlatform)
else:
    setup()
