"""The built-in prompts: a few kinds of text, so that drafts are sometimes right, often, and nearly never."""

from __future__ import annotations

from headstart.measure.prompts import Prompt

BUILT_IN = (
    Prompt("chat", "Why does bread rise, and why does it need time? Explain it to a friend who has never baked.", "chat"),
    Prompt("advice", "I have three days in a city by the sea in early spring. What should I do there?", "chat"),
    Prompt("code", "Write a Python function that merges two sorted lists, and a short test for it.", "code"),
    Prompt(
        "edit",
        "Rewrite this function so that it returns None for an empty list, and change nothing else:\n\n"
        "def largest(values):\n    best = values[0]\n    for value in values[1:]:\n        if value > best:\n"
        "            best = value\n    return best",
        "code",
    ),
    Prompt(
        "summary",
        "Summarise in one sentence: The town's old mill stood empty for thirty years. Last summer a group of neighbours "
        "cleared the wheel pit, found the wheel almost whole, and turned the mill into a small workshop where children learn "
        "how water was made to work. It opens every Saturday, and the flour that is ground there is given away.",
        "copying",
    ),
    Prompt("repeat", "Repeat these words in the same order, five times: river, lantern, apple, river, stone.", "copying"),
    Prompt("numbers", "A train leaves at 9:40 and needs 2 hours and 35 minutes. When does it arrive? Show how.", "reasoning"),
    Prompt("odd", "zqx 7741 ~~ vlorp; äöü 漢字 \U0001f40c 0x1F — what could this mean?", "odd"),
)
