"""One HTML file from its parts: the built assets, a run's numbers as JSON, and its arrays, all compressed."""

import base64
import gzip
import html
import json
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

from genda_mjx.explorer.tracing import Program

ASSETS = files("genda_mjx.explorer") / "assets"


@dataclass
class Arrays:
    """Arrays one after the other, with the table that finds them."""

    table: list[dict[str, Any]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    _size: int = 0

    def add(self, array: np.ndarray, half: bool = False) -> int:
        """Keeps an array as float32, or as float16; returns its number."""
        data = np.ascontiguousarray(array, np.float16 if half else np.float32).tobytes()
        self.table.append({"at": self._size, "size": int(np.size(array)), "type": "f2" if half else "f4"})
        padded = data + bytes(-len(data) % 4)
        self.parts.append(padded)
        self._size += len(padded)
        return len(self.table) - 1


def program_json(program: Program, arrays: Arrays, half: bool) -> dict[str, Any]:
    """A program whose constants are numbers of arrays; with `half` its matrices are float16."""
    return {
        "inputs": program.inputs,
        "sizes": program.sizes,
        "instructions": program.instructions,
        "outputs": program.outputs,
        "constants": [arrays.add(constant, half and constant.ndim == 2) for constant in program.constants],
    }


def packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def render(title: str, run: dict[str, Any], arrays: Arrays) -> str:
    """The page as text."""
    run = run | {"title": title, "arrays": arrays.table}
    parts = {
        "TITLE": html.escape(title),
        "LICENCES": html.escape((ASSETS / "LICENCES.txt").read_text()),
        "APP": packed((ASSETS / "app.js.gz").read_bytes()),
        "WASM": packed((ASSETS / "mujoco.wasm.gz").read_bytes()),
        "RUN": packed(gzip.compress(json.dumps(run, separators=(",", ":")).encode(), mtime=0)),
        "ARRAYS": packed(gzip.compress(b"".join(arrays.parts), mtime=0)),
    }
    page = (ASSETS / "page.html").read_text()
    for name, text in parts.items():
        page = page.replace(f"@{name}@", text)
    return page
