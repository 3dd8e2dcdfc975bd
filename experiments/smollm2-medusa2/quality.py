"""What a joint run did to its base, on documents that neither the run nor its heads have seen.

    python experiments/smollm2-medusa2/quality.py TUNED CORPUS [--rows 8000] [--record FILE]

TUNED is the model folder, CORPUS a folder that the original wrote (`headstart train`, or `benchmarks/corpus.py --corpus`). The
record (quality.json beside this file) says how likely both find the documents' supervised tokens, how far they differ, how much
the rise of perplexity would vary with other documents, and what all that would be without the factor on the tuned model's
logits.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.train.joint.quality import Quality

RESULT = Path(__file__).with_name("quality.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tuned")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--record", type=Path, default=RESULT)
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
    from headstart.train.model_folder import RECORD

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
        ends = list(accumulate(map(num_rows, documents)))
        spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False) if end > start]
        each = [quality(models[0], models[1], before[span], after[span], tokens[span], 512) for span in spans]
        factor = json.loads((Path(wanted.tuned) / RECORD).read_text()).get("logit_factor", 1.0)
        bare = quality(models[0], models[1], before, after / factor, tokens, 512)
    record = {
        "quality": asdict(found) | {"perplexity_rise": found.rise, "standard_error": rise_error(each)},
        "logit_factor": factor,
        "without_factor": asdict(bare) | {"perplexity_rise": bare.rise},
        "corpus": statistics(documents),
    }
    date = datetime.now(UTC).isoformat(timespec="seconds")
    save_json(wanted.record, record | {"date": date, "commit": commit(), "machine": machine(), "versions": versions()})
    print(record["quality"])


def rise_error(documents: Sequence[Quality]) -> float:
    """Standard error of the rise of perplexity, from how it differs between documents (of a ratio of two sums, linearised)."""
    rises = [found.num_rows * math.log1p(found.rise) for found in documents]
    rows = [found.num_rows for found in documents]
    mean = sum(rises) / sum(rows)
    squares = sum((rise - mean * number) ** 2 for rise, number in zip(rises, rows, strict=True))
    number = len(documents)
    return math.exp(mean) * math.sqrt(squares * number / (number - 1)) / sum(rows)


if __name__ == "__main__":
    main()
