"""The kinds of conversation in a self-written corpus, and plain words that set them going.

The model samples the user's turn itself (Magpie, Xu et al. 2024); an opening put after the template's user prefix decides its
kind. Without openings a small model asks for the same few things over and over, and heads trained on that guess badly on
translation, longer passages and everything else it never wrote.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

ARTICLE = "article"  # its answers become the passages of later rounds


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of user's turn: its share of the fresh conversations and the openings to choose from."""

    name: str
    share: float
    openings: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


KINDS = (
    Kind("chat", 0.25, ("",)),
    Kind(
        "instruction",
        0.25,
        _words(
            "Write|Explain|What|How|Why|Describe|Imagine|You are|Create|Compose|Can you|Could you|Give me"
            "|Compare|Suppose|Discuss"
            "|Please|Help me|Design|Develop|Tell me|I|In|Which|Is|Draft|Provide|Analyze|Pretend|Act as|Let's|My"
            "|The|Given|Propose"
            "|Outline|When|Who|Rewrite|Identify|Evaluate|As|Should|Do you|Edit|Brainstorm|Suggest|Plan|If"
        ),
    ),
    Kind(
        "code",
        0.08,
        _words(
            "Write a Python function|Write a Python program|Implement|Write a function that|Write a C++ program"
            "|Write a SQL query"
            "|How do I write code|Given an array|Write a JavaScript function|Create a class|Fix the bug in this code:"
            "|Write an HTML page|Write a shell script|Explain this code:|Write a regular expression"
        ),
    ),
    Kind(
        "translation",
        0.10,
        _words(
            "Translate German to English: Die|Translate German to English: Der|Translate German to English: Ich"
            "|Translate German to English: Es|Translate German to English:"
            "|Translate the following German sentence into English: Das"
            "|Translate this German text to English: Wir|Translate from German: Ein"
            "|Translate the sentence below into English.\n\nIm"
            "|Translate the following sentence from French to English: Le|Translate French to English: Il"
            "|Translate from Spanish to English: El|Translate Spanish to English: La|Translate into German:"
            "|Translate the following into French:|Translate into Spanish:|Translate this text to English: Bei"
            "|Translate to English: Nach|What does this German sentence mean: Sie"
        ),
    ),
    Kind(
        "arithmetic",
        0.12,
        _words(
            "Tom has|A store sells|If a train|Sarah|John|A farmer|Maria bought|There are|Each|James|A school"
            "|Lisa|In a class|Mike"
            "|The price of|Emma|A box contains|Two|A car travels|Anna earns|Solve|Find the value of|Calculate|How many"
            "|What is the sum of|If x|Peter saves|A baker|Every day|The perimeter of"
        ),
    ),
    Kind(
        "question",
        0.09,
        _words(
            "who|when|where|what is|what was|how many|who was the|who is the|when did|where is|what does|which"
            "|how long|who wrote"
            "|who sang|what year|where did|why is|who played|when was|how do|what are|what kind of|name the"
            "|how much|who invented"
        ),
    ),
    Kind(
        "list",
        0.05,
        _words(
            "List|List five|List ten|Name three|Give a list of|Extract|Identify all|Make a table of"
            "|Give ten examples of|Classify"
            "|Sort|Rank|Generate a JSON|Give me a step-by-step"
        ),
    ),
    Kind(
        ARTICLE,
        0.06,
        _words(
            "Write a long, detailed news article about|Write an encyclopedia article about|Write a detailed report about"
            "|Write several paragraphs about the history of|Write a long story about|Write a blog post about"
            "|Write an article on"
        ),
    ),
)

FOLLOW_UPS = _words(
    "Rewrite|Now|Can you|What|Explain|Why|How|Make it|Shorten|Give|Take your previous response|Summarize|Is|||||"
)

SUMMARIES = (
    "Summarize the following text:\n\n{passage}",
    "Summarize:\n{passage}",
    "{passage}\n\nSummarize the text above in a few sentences.",
    "Write a short summary of this article.\n\n{passage}",
    "{passage}\n\nTL;DR:",
    "Give me the main points of the following passage:\n{passage}",
)

READINGS = (
    "Read the following text and answer the question.\n\n{passage}\n\nQuestion:",
    "{passage}\n\nUsing the text above, answer this question:",
    "Context: {passage}\n\nQuestion:",
    "Here is a passage:\n{passage}\n\nAccording to the passage,",
    "Passage 1: {passage}\n\nPassage 2: {other}\n\nQuestion:",
    "Document: {passage}\n\nBased on the document,",
)


def draw_kind(rng: random.Random) -> tuple[str, str]:
    """A kind's name and one of its openings, by their shares."""
    kind = rng.choices(KINDS, [kind.share for kind in KINDS])[0]
    return kind.name, rng.choice(kind.openings)


def excerpt(passage: str, rng: random.Random, longest: int) -> str:
    """The first words of a passage, a random number of them."""
    words = passage.split(" ")
    return " ".join(words[: rng.randint(min(50, longest), longest)])
