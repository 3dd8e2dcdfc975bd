"""A proposer of one's own: whatever followed the last token before, may follow it again.

python examples/own_proposer.py [MODEL]
"""

import sys

import headstart as hs
from headstart.proposers.base import Observation, Sequence
from headstart.proposers.choose import Guesser
from headstart.tree import ROOT, Tree, TreeBuilder


class FollowersProposer:
    """A branch for each of the last places where the root's token stood: the tokens that came behind it there."""

    name = "followers"

    def propose(self, sequences: list[Sequence]) -> list[Tree]:
        """One tree a sequence; the root alone if its token is new."""
        return [self._tree(sequence) for sequence in sequences]

    def observe(self, observations: list[Observation]) -> None:
        """Other proposers learn here which guesses were right; this one reads the text alone."""

    def forget(self, key: int) -> None:
        """Nothing is kept for a sequence."""

    def _tree(self, sequence: Sequence) -> Tree:
        *before, root = sequence.tokens
        builder = TreeBuilder(root)
        places = [place for place, token in enumerate(before) if token == root]
        for place in places[-3:]:
            row = ROOT
            for token in before[place + 1 : place + 5]:
                row = builder.add(row, token, 0.4)  # the estimate decides what stays if the tree is too large
        return builder.build().pruned(sequence.max_nodes, sequence.max_depth)


if __name__ == "__main__":
    plain = hs.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2", proposer="none")
    guesser = Guesser(FollowersProposer.name, FollowersProposer(), num_nodes=12)
    own = hs.LLM(plain.target, plain.tokenizer, guesser)
    prompt = "Repeat this sentence three times: The quick brown fox jumps over the lazy dog."
    answer = own.generate(prompt, max_tokens=64)
    print(answer.text)
    print(f"{answer.stats.num_steps} steps, L = {answer.stats.acceptance_length:.2f}")
    print("as plain:", answer.tokens == plain.generate(prompt, max_tokens=64).tokens)
