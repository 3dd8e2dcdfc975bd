"""The package's face: complete, sorted, and free to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headstart
from headstart import errors

HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "scipy",
    "tokenizers",
    "jinja2",
    "safetensors",
    "gguf",
    "huggingface_hub",
    "rich",
    "cyclopts",
)


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names_are_sorted_and_resolve() -> None:
    assert headstart.__all__ == sorted(headstart.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert dir(headstart) == sorted([*headstart.__all__, "__version__"])
    for name in headstart.__all__:
        assert callable(getattr(headstart, name)), name


def test_every_error_is_public_and_one_family() -> None:
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert raised == {name for name in headstart.__all__ if name.endswith("Error")}
    assert all(issubclass(getattr(headstart, name), headstart.HeadstartError) for name in raised)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = headstart.no_such_name


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import sys, headstart; dir(headstart); print([m for m in {HEAVY!r} if m in sys.modules])"
    assert in_a_new_process(code) == "[]"


def test_decoding_names_do_not_load_torch() -> None:
    code = "import sys, headstart as hs; hs.LLM, hs.load, hs.Sampling, hs.Answer; print({'torch'} & set(sys.modules))"
    assert in_a_new_process(code) == "set()"


@pytest.mark.parametrize("verb", ["measure", "train"])
def test_a_verb_stays_callable_when_its_subpackage_was_imported(verb: str) -> None:
    """Python binds the subpackage ``headstart.measure`` to the same name as the function."""
    code = (
        f"import headstart as hs; import headstart.{verb} as package; hs.{verb}; print(callable(hs.{verb}), package.__name__)"
    )
    assert in_a_new_process(code) == f"True headstart.{verb}"
