"""What the experiments count: polynomials that are right, names that were read before, and predictions of formulas."""

from __future__ import annotations

import json
import runpy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

HOME = Path(__file__).parent.parent / "experiments"
POLYNOMIALS, INDUCTION, FORMULA = (
    runpy.run_path(str(HOME / name / "run.py")) for name in ("polynomials", "induction", "formula")
)
Coefficients = st.lists(st.integers(0, 6), min_size=5, max_size=5).map(tuple)


@given(a=Coefficients, b=Coefficients, x=st.integers(0, 6))
def test_polynomials_are_composed_and_multiplied_as_their_values_are(a: Any, b: Any, x: int) -> None:
    """Where nothing is cut off: polynomials of low degree, at a point."""

    def value(c: Any, at: int) -> int:
        return int(sum(factor * at**power for power, factor in enumerate(c))) % 7

    low = (*b[:2], 0, 0, 0)
    assert value(POLYNOMIALS["composed"](a, low), x) == value(a, value(low, x))
    low_a, low_b = (*a[:3], 0, 0), (*b[:3], 0, 0)
    assert value(POLYNOMIALS["multiplied"](low_a, low_b), x) == value(low_a, x) * value(low_b, x) % 7
    assert value(POLYNOMIALS["added"](a, b), x) == (value(a, x) + value(b, x)) % 7


def test_no_test_of_arithmetic_is_trained_on_and_its_tokens_are_characters(tmp_path: Path) -> None:
    samples = [json.loads(line)["text"] for line in POLYNOMIALS["write_data"](tmp_path, 2000).read_text().splitlines()]
    questions = {text for m in range(1, 6) for text, _ in POLYNOMIALS["tests"](m)}
    assert len(samples) > 1900 and not questions & {sample.partition("=")[0] for sample in samples}
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for sample in samples[:50]:
        ids = tokenizer.encode(sample, add_special_tokens=False).ids
        assert len(ids) == len(sample) and tokenizer.decode(ids) == sample


def test_stories_name_names_again_and_training_has_other_ones_of_the_same_syllables() -> None:
    words = INDUCTION["vocabulary"]()
    seen: dict[bool, set[tuple[str, str]]] = {True: set(), False: set()}
    for tested in (True, False):
        rng = np.random.default_rng(0)
        for _ in range(300):
            tokens, repeated = INDUCTION["story"](rng, tested=tested)
            names = [(words[a], words[b]) for a, b in pairwise(tokens) if words[a] in INDUCTION["FIRSTS"]]
            seen[tested] |= set(names)
            for place in repeated:
                pair = tokens[place - 1 : place + 1]
                assert any(tokens[i : i + 2] == pair for i in range(place - 2))
    assert not seen[True] & seen[False]
    assert {a for a, _ in seen[True]} <= {a for a, _ in seen[False]} and {b for _, b in seen[True]} <= {
        b for _, b in seen[False]
    }


def test_formulas_predict_what_holds_where_all_positions_are_alike() -> None:
    found = {"p": [0.5, 0.5, 0.5], "K": 3, "pooled_p": 0.5, "L": 1.875, "T_ms": 2.0, "T_overhead_ms": 1.0}
    by_position, pooled, speedup = FORMULA["predicted"](found)
    assert by_position == pooled == pytest.approx(1.875)
    assert speedup == pytest.approx(1.25)
