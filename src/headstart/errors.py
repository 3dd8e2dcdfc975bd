"""Everything Headstart raises on purpose.

    HeadstartError
    ├── ModelError      a model, tokenizer or template cannot be loaded or used
    ├── HeadsError      a heads folder is damaged, incomplete or made for another base model
    ├── RequestError    a request asks for something that is unknown, out of range or impossible (HTTP: 4xx)
    ├── DataError       prompts or training data cannot be read or hold nothing to use
    └── TrainingError   training stopped; the message names the step

Each message is one line that names the thing and the next step. The command line prints it and exits with status 1; anything
else that reaches a user is a bug of ours.
"""

INSTALL_TORCH = "pip install 'headstart[torch]'"
"""The way out wherever PyTorch is missing."""

_LONGEST = 200  # characters of a value in a message


class HeadstartError(Exception):
    """Base of all errors that are raised on purpose."""


class ModelError(HeadstartError):
    """A model, its tokenizer or its chat template cannot be loaded or used."""


class HeadsError(HeadstartError):
    """A heads folder is damaged, incomplete, of an unknown version, or made for another base model."""


class RequestError(HeadstartError):
    """A request asks for something unknown, out of range or impossible."""


class DataError(HeadstartError):
    """Prompts or training data cannot be read, or hold nothing to use."""


class TrainingError(HeadstartError):
    """Training cannot go on; the message names the step and the reason."""


def require(valid: object, name: str, value: object, expected: str) -> None:
    """RequestError unless ``valid``: what the argument ``name`` is, and what it must be."""
    if not valid:
        text = repr(value)
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}..."
        raise RequestError(f"{name} is {text}; it must be {expected}")
