"""The kinds of conversation in a self-written corpus, and the words that set them going.

The model samples the user's turn itself (Magpie, Xu et al. 2024); an *opening* put after the template's user prefix decides
its kind. Without openings a small model asks for the same few things over and over, and heads trained on that guess badly on
whatever it never wrote. What a model hardly asks for by itself is asked as a whole *request*: translations of sentences that
are put together (``sentences.py``), summaries of and extractions from passages that the model wrote earlier. Questions over
long passages are in between: the passage is given, the question is the model's own.

Shares are of the supervised tokens, so a kind with short answers is asked for more often (``shares.py``).
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass

from headstart.errors import DataError
from headstart.train.sentences import french, german_text, spanish


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of user's turn: its share of the supervised tokens, and what to choose from.

    ``openings`` are continued by the model; ``requests`` are whole. Both may have fields: {german}, {french}, {spanish},
    {sentence}, {passage}, {documents}.
    """

    name: str
    share: float
    openings: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    requests_share: float = 0.5  # where there are both
    follow_ups: float = 0.35  # probability of a further turn
    answer_factor: float = 1.0  # longest answer over that of other kinds
    gives_passages: bool = False  # whether its long answers are read in later conversations
    continuations: tuple[str, ...] = ()  # beginnings of a further turn; empty: those that are built in, in English
    num_documents: tuple[int, int] = (2, 4)  # that {documents} stands for
    document_words: tuple[int, int] = (50, 130)  # of each of them


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


KINDS = (
    Kind("chat", 0.14, ("",), gives_passages=True),
    Kind(
        "instruction",
        0.06,
        _words(
            "Write|Explain|What|How|Why|Describe|Imagine|Create|Can you|Could you|Give me|Compare|Suppose|Discuss"
            "|Please|Help me|Design|Develop|Tell me|I|In|Which|Is|Provide|Analyze|Let's|My|The|Given|Propose|Outline"
            "|When|Who|Identify|Evaluate|As|Should|Do you|Brainstorm|Suggest|Plan|If"
        ),
        gives_passages=True,
    ),
    Kind(
        "writing",
        0.03,
        _words(
            "Write a short story about|Write a poem about|Draft an email to|Write a letter to"
            "|Compose a blog post about|Write a review of|Write a speech about|Rewrite the following paragraph:"
            "|Edit the following text:|Write a persuasive essay on|Write a dialogue|Write a product description for"
            "|Describe a character who|Write a travel diary about|Make this sentence more formal:"
            "|Write a cover letter for|Write an opening paragraph"
        ),
        gives_passages=True,
    ),
    Kind(
        "roleplay",
        0.02,
        _words(
            "Pretend you are|Act as|You are a|You are an|Imagine yourself as|Take the role of|Play the part of a"
            "|Pretend to be|Assume the role of|As a doctor,|As a teacher,|As a lawyer,|Let us play a game: you are"
        ),
    ),
    Kind(
        "stem",
        0.03,
        _words(
            "Explain how|What happens when|Describe the process of|What is the difference between|Why do"
            "|Explain the law of|How does a|In biology,|In physics,|In chemistry,|What is the function of"
            "|How do scientists|Describe the structure of|Define|What are the causes of|What is photosynthesis"
            "|Explain the concept of|What is the role of|How is electricity"
        ),
        gives_passages=True,
    ),
    Kind(
        "humanities",
        0.03,
        _words(
            "Discuss the causes of|How did the|What were the consequences of|Explain the importance of|Who was"
            "|Describe the history of|Compare and contrast|What does the philosopher|Analyze the role of|How has"
            "|What is the meaning of|Discuss the influence of|In economics,|In the history of|Describe the culture of"
            "|What led to|Explain the theory of"
        ),
        gives_passages=True,
    ),
    Kind(
        "reasoning",
        0.02,
        _words(
            "If all|Imagine you are in a race|Which of the following|Each question has one answer:|Suppose that"
            "|A man is|One morning|Which word|What comes next:|Is it true that|Can a|Three friends|You have two"
            "|If today is|Who is taller|There is a room with|Decide whether"
        ),
    ),
    Kind(
        "code",
        0.06,
        _words(
            "Write a Python function|Write a Python program|Implement|Write a function that|Write a C++ program"
            "|Write a SQL query|How do I write code|Given an array|Write a JavaScript function|Create a class"
            "|Fix the bug in this code:|Write an HTML page|Write a shell script|Explain this code:"
            "|Write a regular expression"
        ),
    ),
    Kind(
        "translation",
        0.18,
        _words(
            "Translate German to English: Die|Translate German to English: Der|Translate German to English: Ich"
            "|Translate German to English: Es|Translate German to English:|Translate this German text to English: Wir"
            "|Translate the following German sentence into English: Das|Translate from German: Ein"
            "|Translate to English: Nach|Translate the sentence below into English.\n\nIm"
            "|Translate this text to English: Bei|Translate into German:"
            "|Translate the following sentence from French to English: Le|Translate French to English: Il"
            "|Translate from Spanish to English: El|Translate Spanish to English: La|Translate into Spanish:"
            "|Translate the following into French:|What does this German sentence mean: Sie"
            "|Translate German to English: {german}"
        ),
        (
            "Translate German to English: {german}",
            "Translate German to English: {german}",
            "Translate German to English: {german}",
            "Translate German to English:\n{german}",
            "Translate the following German sentence into English: {german}",
            "Translate this text from German to English.\n\n{german}",
            "Translate to English: {german}",
            "What does this mean in English? {german}",
            "German: {german}\nEnglish:",
            "{german}\n\nTranslate the text above into English.",
            "Translate French to English: {french}",
            "Translate Spanish to English: {spanish}",
            "Translate English to German: {sentence}",
            "Translate the following sentence into French: {sentence}",
            "Translate into Spanish: {sentence}",
        ),
        requests_share=0.7,
        follow_ups=0.1,
    ),
    Kind(
        "arithmetic",
        0.09,
        _words(
            "Tom has|A store sells|If a train|Sarah|John|A farmer|Maria bought|There are|Each|James|A school|Lisa"
            "|In a class|Mike|The price of|Emma|A box contains|Two|A car travels|Anna earns|Solve|Find the value of"
            "|Calculate|How many|What is the sum of|If x|Peter saves|A baker|Every day|The perimeter of"
        ),
    ),
    Kind(
        "question",
        0.09,
        _words(
            "who|when|where|what is|what was|how many|who was the|who is the|when did|where is|what does|which"
            "|how long|who wrote|who sang|what year|where did|why is|who played|when was|how do|what are|what kind of"
            "|name the|how much|who invented"
        ),
        follow_ups=0.2,
        gives_passages=True,
    ),
    Kind(
        "list",
        0.04,
        _words(
            "List|List five|List ten|Name three|Give a list of|Identify all|Make a table of|Give ten examples of"
            "|Classify|Sort|Rank|Generate a JSON|Give me a step-by-step"
        ),
    ),
    Kind(
        "article",
        0.05,
        _words(
            "Write a long, detailed news article about|Write an encyclopedia article about"
            "|Write a detailed report about|Write a news story:|Write several paragraphs about the history of"
            "|Write a long story about|Write a newspaper article about a|Write an article on|Report on the latest"
            "|Write a biography of|Write the news of the day from"
        ),
        follow_ups=0.1,
        answer_factor=2.5,
        gives_passages=True,
    ),
    Kind(
        "summary",
        0.08,
        requests=(
            "Summarize the following text:\n\n{passage}",
            "Summarize: {passage}",
            "Summarize:\n{passage}",
            "{passage}\n\nSummarize the text above in a few sentences.",
            "Write a short summary of this article.\n\n{passage}",
            "{passage}\n\nTL;DR:",
            "Give me the main points of the following passage:\n{passage}",
            "Summarize this article in three bullet points.\n\n{passage}",
            "Article: {passage}\n\nWrite one paragraph that says the same.",
            "What is the following text about?\n\n{passage}",
            "Summarize what these texts have in common.\n\n{documents}",
        ),
        follow_ups=0.3,
    ),
    Kind(
        "extraction",
        0.03,
        requests=(
            "Extract all names of people and places from the text below.\n\n{passage}",
            "{passage}\n\nList the key facts of this text.",
            "Find the most important words in the following text and return them as a list:\n{passage}",
            "Read the text and give its topic, its main claim and one example as JSON.\n\n{passage}",
            "Which dates and numbers does this text mention?\n\n{passage}",
            "Give a title and five keywords for this text:\n\n{passage}",
        ),
        follow_ups=0.3,
    ),
    Kind(
        "reading",
        0.09,
        (
            "Read the following text and answer the question.\n\n{passage}\n\nQuestion:",
            "{passage}\n\nUsing the text above, answer this question:",
            "Context: {passage}\n\nQuestion:",
            "Here is a passage:\n{passage}\n\nAccording to the passage,",
            "Document: {passage}\n\nBased on the document,",
            "Answer the question from the documents below.\n\n{documents}\n\nQuestion:",
            "{documents}\n\nUse these documents to answer the question: what",
            "You are given some search results. Answer with their help.\n\n{documents}\n\nQuestion: who",
            "Write a good answer to the question, using only the given passages.\n\n{documents}\n\nQuestion: how",
            "I have these notes:\n\n{documents}\n\nWhat",
            "{documents}\n\nQuestion: when",
        ),
        follow_ups=0.7,
    ),
    Kind(
        "long",
        0.03,
        requests=(
            "{documents}\n\nSummarize all of the texts above.",
            "Read these documents.\n\n{documents}\n\nWhat do they have in common?",
            "{documents}\n\nWrite one sentence about each of the documents above.",
            "{documents}\n\nWhich of these texts is the most useful, and why?",
        ),
        follow_ups=0.5,
        num_documents=(8, 14),
        document_words=(120, 400),
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}

FOLLOW_UPS = _words(
    "Rewrite|Now|Can you|What|Explain|Why|How|Make it|Shorten|Give|Take your previous response|Summarize|Is|||||"
)
FOLLOW_UPS_ON_PASSAGES = _words("Question:|What|Who|Why|How|Where|When|According to the text,|Which|And|Explain")

_FIELDS_OF_PASSAGES = frozenset(("sentence", "passage", "documents"))
_PASSAGE_WORDS = (150, 420)
_NUMBERINGS = ("[{}] ", "Document {}: ", "Passage {}: ", "({}) ", "Source {}:\n")


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user says first; the model goes on unless it is whole."""

    text: str
    is_whole: bool


def can_open(kind: Kind, passages: Sequence[str]) -> bool:
    """Whether there is anything to ask yet: some kinds wait for passages."""
    return bool(passages) or any(not _reads(text) for text in kind.openings + kind.requests)


def open_turn(kind: Kind, rng: random.Random, passages: Sequence[str]) -> Turn:
    """A user's turn of this kind, or its beginning."""
    openings, requests = ([text for text in texts if passages or not _reads(text)] for texts in (kind.openings, kind.requests))
    is_whole = not openings or (bool(requests) and rng.random() < kind.requests_share)
    text = rng.choice(requests if is_whole else openings)
    return Turn(text.format(**{name: _filled(name, kind, rng, passages) for name in fields_of(text)}), is_whole)


def follow_up(kind: Kind, rng: random.Random) -> str:
    """The beginning of a further turn of the user."""
    built_in = FOLLOW_UPS_ON_PASSAGES if any(map(_reads, kind.openings)) else FOLLOW_UPS
    return rng.choice(kind.continuations or built_in)


def excerpt(passage: str, rng: random.Random, shortest: int, longest: int) -> str:
    """The first words of a passage, a random number of them, to the end of a sentence where there is one."""
    words = passage.split(" ")
    text = " ".join(words[: rng.randint(shortest, longest)])
    end = max(text.rfind(mark) for mark in (". ", ".\n"))
    return text[: end + 1] if end > len(text) // 2 else text


def fields_of(text: str) -> list[str]:
    """The fields in a text; DataError for one that there is not."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise DataError(f"{text!r} is no text with fields ({error}); a brace itself is written twice") from None
    for name in names:
        if name not in _FIELDS_OF_PASSAGES and name not in _MADE:
            known = ", ".join(sorted([*_FIELDS_OF_PASSAGES, *_MADE]))
            raise DataError(f"{text!r} has the field {name!r}; known are {known}, and a brace itself is written twice")
    return names


def _reads(text: str) -> bool:
    return not _FIELDS_OF_PASSAGES.isdisjoint(fields_of(text))


def _filled(name: str, kind: Kind, rng: random.Random, passages: Sequence[str]) -> str:
    if name in _MADE:
        return _MADE[name](rng)
    if name == "documents":
        return _documents(kind, rng, passages)
    passage = rng.choice(passages)
    return excerpt(passage, rng, *_PASSAGE_WORDS) if name == "passage" else _sentence(passage, rng)


_MADE = {"german": german_text, "french": french, "spanish": spanish}


def _sentence(passage: str, rng: random.Random) -> str:
    sentences = [part.strip() for part in passage.replace("\n", " ").split(". ") if 4 <= len(part.split()) <= 40]
    return f"{rng.choice(sentences).rstrip('.')}." if sentences else excerpt(passage, rng, 8, 30)


def _documents(kind: Kind, rng: random.Random, passages: Sequence[str]) -> str:
    """Numbered excerpts."""
    numbering, number = rng.choice(_NUMBERINGS), rng.randint(*kind.num_documents)
    chosen = [excerpt(rng.choice(passages), rng, *kind.document_words) for _ in range(number)]
    return "\n\n".join(numbering.format(i) + text for i, text in enumerate(chosen, start=1))
