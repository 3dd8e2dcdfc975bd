"""One generation step by step: each verification's tree, drawn from left to right, with accepted and rejected nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_COLUMN, _ROW, _HEIGHT, _WIDTH, _MARGIN = 118, 34, 26, 96, 8
_LONGEST = 11  # characters of a token that fit


def steps(record: Mapping[str, Any]) -> str:
    """All steps, of which the page shows one at a time; empty if nothing was drafted."""
    walk = record["walkthrough"]
    if not walk or not walk["steps"]:
        return ""
    shown = []
    before = ""
    for number, step in enumerate(walk["steps"]):
        new = "".join(step["committed"])
        told = _told(number, step)
        drawing = _tree(step) if step["nodes"] or step["root"] is not None else ""
        shown.append(
            f'<section class="step" id="step-{number}"><p>{escape(told)}</p><div class="scroll">{drawing}</div>'
            f'<p class="text"><span>{escape(before)}</span><mark>{escape(new)}</mark></p></section>'
        )
        before += new
    return (
        f'<div class="steps" data-count="{len(shown)}"><div class="controls" hidden>'
        '<button type="button" class="back">back</button>'
        f'<input type="range" min="0" max="{len(shown) - 1}" value="0" aria-label="step">'
        f'<button type="button" class="next">next</button><output>1 of {len(shown)}</output></div>{"".join(shown)}</div>'
    )


def _told(number: int, step: Mapping[str, Any]) -> str:
    if step["root"] is None:
        return "The prompt's pass gives the first token."
    committed = len(step["committed"])
    tokens = f"{committed} token{'s' if committed != 1 else ''}"
    if not step["nodes"]:
        return f"Step {number}: nothing was drafted; the pass gives {tokens}."
    accepted = step["num_accepted"]
    drafted = f"Step {number}: {len(step['nodes'])} drafted, {accepted} accepted"
    own = "the last one the model's own" if committed > 1 else "the model's own"
    return f"{drafted}; the pass gives {tokens}, {own}."


def _tree(step: Mapping[str, Any]) -> str:
    """Columns are depths; a parent stands beside the middle of its children. Row 0 is the root."""
    nodes: Sequence[Mapping[str, Any]] = step["nodes"]
    children: list[list[int]] = [[] for _ in range(len(nodes) + 1)]
    depths = [0]
    for row, node in enumerate(nodes, start=1):
        children[node["parent"]].append(row)
        depths.append(depths[node["parent"]] + 1)
    heights = _heights(children)
    width = _COLUMN * (max(depths) + 1) + 2 * _MARGIN
    height = _ROW * max(sum(1 for own in children if not own), 1) + 2 * _MARGIN
    parts = []
    for row, node in enumerate(nodes, start=1):
        x1, y1 = _place(depths[node["parent"]], heights[node["parent"]])
        x2, y2 = _place(depths[row], heights[row])
        middle = (x1 + _WIDTH + x2) / 2
        kind = "taken" if node["accepted"] else "left"
        parts.append(f'<path class="edge {kind}" d="M{x1 + _WIDTH} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"/>')
    parts.append(_node(0, heights[0], str(step["root"]), "root", "the last token of the text"))
    for row, node in enumerate(nodes, start=1):
        kind = "taken" if node["accepted"] else "left"
        title = f"{'accepted' if node['accepted'] else 'rejected'}, estimated {node['probability']:.2f}"
        parts.append(_node(depths[row], heights[row], node["text"], kind, title))
    return (
        f'<svg class="tree" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
    )


def _heights(children: Sequence[Sequence[int]]) -> list[float]:
    """Of each row: leaves from top to bottom, every parent in the middle of its children."""
    found = [0.0] * len(children)
    order, stack = list[int](), [0]
    while stack:
        row = stack.pop()
        order.append(row)
        stack.extend(reversed(children[row]))
    leaves = 0
    for row in order:
        if not children[row]:
            found[row] = leaves
            leaves += 1
    for row in reversed(order):
        if children[row]:
            found[row] = sum(found[child] for child in children[row]) / len(children[row])
    return found


def _place(depth: int, height: float) -> tuple[float, float]:
    return _MARGIN + _COLUMN * depth, _MARGIN + _ROW * height + _HEIGHT / 2


def _node(depth: int, height: float, text: str, kind: str, title: str) -> str:
    x, y = _place(depth, height)
    shown = text.replace("\n", "\u21b5").replace(" ", "\u00b7") or "\u2205"
    shown = shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "\u2026"
    mark = {"taken": "\u2713 ", "left": "", "root": ""}[kind]
    return (
        f'<g class="node {kind}"><title>{escape(f"{text!r}: {title}")}</title>'
        f'<rect x="{x}" y="{y - _HEIGHT / 2}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
        f'<text x="{x + _WIDTH / 2}" y="{y + 5}" text-anchor="middle">{escape(mark + shown)}</text></g>'
    )
