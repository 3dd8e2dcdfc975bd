"""The types of the compiled module (``_native.pyi``) name what the module has: functions, methods, properties, parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headstart
from headstart import _native

Interface = dict[str, list[str] | None]
"""Qualified name -> names of the parameters; None for a property."""


def declared() -> Interface:
    stub = Path(headstart.__file__).with_name("_native.pyi")
    return dict(_declared(ast.parse(stub.read_text(encoding="utf-8")).body, ""))


def _declared(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, list[str] | None]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _declared(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            assert node.name != "__init__" or prefix
            is_property = any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list)
            yield prefix + node.name, None if is_property else [argument.arg for argument in node.args.args]


def compiled() -> Interface:
    return dict(_compiled(_native, ""))


def _compiled(owner: Any, prefix: str) -> Iterator[tuple[str, list[str] | None]]:
    for name, value in vars(owner).items():
        if isinstance(value, type):
            yield from _compiled(value, f"{name}.")
        elif hasattr(value, "__nb_signature__") and (name == "__init__" or not name.startswith("_")):
            yield prefix + name, _parameters(value)
        elif isinstance(value, property):
            yield prefix + name, None


def _parameters(function: Any) -> list[str]:
    ((signature, *_),) = function.__nb_signature__  # such as: def f(x: ndarray[shape=(*)] | None = \\0) -> int
    while "[" in signature:
        signature = re.sub(r"\[[^\[\]]*\]", "", signature)
    (parsed,) = ast.parse(re.sub(r"\\\d+", "...", signature) + ": ...").body
    assert isinstance(parsed, ast.FunctionDef)
    return [argument.arg for argument in (*parsed.args.posonlyargs, *parsed.args.args)]


def test_the_stub_declares_what_the_module_has() -> None:
    stub, module = declared(), compiled()
    assert len(module) > 20
    assert stub.keys() == module.keys()
    assert stub == module
