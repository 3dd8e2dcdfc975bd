"""One prompt, several proposers, one table.

python examples/compare_proposers.py [MODEL] [PROMPT]
"""

import sys

import headstart as hs

PROPOSERS: dict[str, dict[str, str]] = {
    "none": {},
    "ngram": {},
    "suffix": {},
    "draft_model": {"draft": "layers:1"},  # the target's own first layer; a second model of the same vocabulary does better
    "medusa": {},  # the heads that fit the model's fingerprint
    "hydra": {},
    "combined": {},
    "auto": {},
}


def main(model: str = "smollm2", prompt: str = "Write a Python function that reverses a string, then explain it.") -> None:
    """Decode the prompt with each proposer and print what it took."""
    plain = hs.load(model, proposer="none")
    plain.generate(prompt, max_tokens=4)  # warms caches up
    expected = plain.generate(prompt, max_tokens=48).tokens
    print(f"{'proposer':12} {'steps':>5} {'L':>5} {'tokens/s':>9}  same tokens as plain")
    for name, options in PROPOSERS.items():
        try:
            llm = plain.with_proposer(name, **options)
        except hs.HeadsError as error:
            print(f"{name:12} {error}")
            continue
        answer = llm.generate(prompt, max_tokens=48)
        speed = len(answer.tokens) / answer.seconds
        same = "yes" if answer.tokens == expected else "no"
        print(f"{name:12} {answer.stats.num_steps:5} {answer.stats.acceptance_length:5.2f} {speed:9.1f}  {same}")


if __name__ == "__main__":
    main(*sys.argv[1:])
