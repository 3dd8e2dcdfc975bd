"""What a joint run did to its base, on documents that neither the run nor its heads have seen.

    python experiments/smollm2-medusa2/quality.py TUNED CORPUS [--rows 4000]

TUNED is the model folder, CORPUS a folder that the original wrote (`headstart train`, or `benchmarks/corpus.py --corpus`). The
record is quality.json beside this file: perplexity of the documents' supervised tokens by both, and how far they differ.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

RESULT = Path(__file__).with_name("quality.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tuned")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rows", type=int, default=4000)
    wanted = parser.parse_args()
    import torch

    from headstart.heads.base import BaseIdentity
    from headstart.measure.environment import commit, machine, versions
    from headstart.measure.report import save_json
    from headstart.target.loading import load_model
    from headstart.train.base import FrozenModel
    from headstart.train.capture import batch_of, num_rows
    from headstart.train.corpus import Corpus, statistics
    from headstart.train.joint.objective import states_of
    from headstart.train.joint.quality import quality

    original, tuned = (load_model(name, dtype="bfloat16", engine="hf").target for name in ("smollm2", wanted.tuned))
    documents = []
    for document in Corpus(wanted.corpus, BaseIdentity.of(original).fingerprint).read():
        if sum(map(num_rows, documents)) < wanted.rows:
            documents.append(document)
    models = [FrozenModel(target.model, target.vocab_size) for target in (original, tuned)]
    with torch.no_grad():
        before, after = (states_of(model.module, documents, model.device) for model in models)
        tokens = batch_of(before, torch.zeros(len(before), dtype=torch.long), documents).roots
        found = quality(models[0], models[1], before, after, tokens, 512)
    record = {"quality": asdict(found) | {"perplexity_rise": found.rise}, "corpus": statistics(documents)}
    save_json(RESULT, record | {"commit": commit(), "machine": machine(), "versions": versions()})
    print(record["quality"])


if __name__ == "__main__":
    main()
