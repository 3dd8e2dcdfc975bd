"""How fast this machine reads memory: ``bandwidth.cpp``, compiled when needed and kept running."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from worker import EngineError

_SOURCE = Path(__file__).with_name("bandwidth.cpp")
_MEGABYTES = 512  # far more than any cache holds
_READS = 5


class Ruler:
    """A process that reads a large buffer when asked."""

    def __init__(self, threads: int) -> None:
        """Compile and start it; ``EngineError`` if there is no compiler."""
        compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
        if compiler is None:
            raise EngineError("measuring the bandwidth needs a C++ compiler; install one, or name it in CXX")
        self._folder = tempfile.TemporaryDirectory()
        program = str(Path(self._folder.name) / "bandwidth")
        flags = ["-std=c++20", "-O3", "-march=native", "-pthread"]
        done = subprocess.run([compiler, *flags, str(_SOURCE), "-o", program], capture_output=True, text=True, check=False)
        if done.returncode:
            raise EngineError(f"{_SOURCE.name} cannot be compiled: {done.stderr.strip().splitlines()[0]}")
        self._process = subprocess.Popen(
            [program, str(threads), str(_MEGABYTES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def gb_s(self) -> float:
        """The best of a few reads."""
        assert self._process.stdin is not None and self._process.stdout is not None
        reads = []
        for _ in range(_READS):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            reads.append(float(self._process.stdout.readline()))
        return max(reads)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()
