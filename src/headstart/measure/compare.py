"""Two records side by side, and whether what differs is more than noise.

Records of the same prompts are compared configuration by configuration, B over A. Two runs meet the machine in two moods,
so a proposer's speed is judged by its *speedup*: its tokens a second over those of plain decoding in its own record. L is
judged as well, which knows no mood at all. Intervals are paired bootstraps over the prompts; where one holds 1, the
difference is noise.

Plain decoding's own tokens a second are shown and not judged: a change there is the machine's, or that of the engine
itself, and the records cannot tell which.

Other parameters of sampling give other texts, whose L and times are no one's progress: such records are refused. What else
differs (model, engine, machine, nodes) is noted.

Worse, and so a failure for whoever asks from a script: a speedup or an L below that of A beyond noise, or faults where A
had fewer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headstart.errors import DataError
from headstart.measure.intervals import Interval, Rate, interval
from headstart.measure.settings import PLAIN
from headstart.measure.tables import AXES, Table, described, name_of, varied

Record = Mapping[str, Any]
Entry = Mapping[str, Any]
_KEY = ("proposer", "accept", *AXES)
_OWN_AXES = ("temperature", "max_tokens")  # of sampling: each configuration has its own
_NO_TEXT = ("n", "logprobs")  # parameters of sampling that leave the text as it is
_CHANCE = ("seed", "top_k", "top_p", "min_p")  # idle at temperature 0


@dataclass(frozen=True, slots=True)
class Compared:
    """One configuration in both records."""

    a: Entry
    b: Entry
    speed: Interval | None  # of tokens a second
    speedup: Interval | None  # of the speedups; None for plain decoding
    length: Interval | None  # of L

    @property
    def problem(self) -> str | None:
        """What became worse."""
        if (self.b["faults"] or 0) > (self.a["faults"] or 0):
            return f"{self.b['faults']} faults instead of {self.a['faults'] or 0}"
        for name, found in (("speedup", self.speedup), ("L", self.length)):
            if found is not None and found.high < 1:
                return f"{name} {found.value:.3f} of what it was ({found.low:.3f} to {found.high:.3f})"
        return None

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.problem:
            return "worse"
        if self.speedup is None:
            return "machine or engine" if self.speed is not None and not self.speed.is_noise else "noise"
        return "better" if self.speedup.low > 1 else "noise"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All configurations that both records have, and remarks on the others."""

    compared: tuple[Compared, ...]
    notes: tuple[str, ...]
    missing: tuple[str, ...] = ()  # configurations that B lacks

    @property
    def problem(self) -> str | None:
        """One line on everything that became worse or is no longer there; None if nothing is."""
        entries = [one.b for one in self.compared]
        worse = [f"{described(one.b, entries)}: {one.problem}" for one in self.compared if one.problem]
        lines = [f"{len(worse)} of {len(self.compared)} configurations became worse: {'; '.join(worse)}"] if worse else []
        if self.missing:
            lines.append(f"B lacks {len(self.missing)} of A's configurations: {'; '.join(self.missing)}")
        return "; ".join(lines) or None

    def table(self) -> Table:
        """Side by side."""
        entries = [one.b for one in self.compared]
        header = [
            "proposer",
            *varied(entries),
            "L A",
            "L B",
            "tokens/s A",
            "tokens/s B",
            "B/A",
            "speedup B/A",
            "95%",
            "verdict",
        ]
        rows = []
        for one in self.compared:
            speedup = one.speedup
            rows.append(
                [
                    *name_of(one.b, entries),
                    *(f"{entry['acceptance_length']:.2f}" for entry in (one.a, one.b)),
                    *(f"{entry['tokens_per_second']:.1f}" for entry in (one.a, one.b)),
                    f"{one.speed.value:.3f}" if one.speed else "-",
                    f"{speedup.value:.3f}" if speedup else "-",
                    f"{speedup.low:.3f}-{speedup.high:.3f}" if speedup else "-",
                    one.verdict,
                ]
            )
        return Table("B over A", header, rows)

    def describe(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "problem": self.problem,
            "notes": list(self.notes),
            "compared": [
                {name: one.b[name] for name in _KEY}
                | {name: _described(getattr(one, name)) for name in ("speed", "speedup", "length")}
                | {"verdict": one.verdict, "problem": one.problem}
                for one in self.compared
            ],
        }


def compare(a: Record, b: Record) -> Comparison:
    """B over A; DataError if they are of different prompts or sampling, or share no configuration."""
    if (a["prompts"]["sha256"], a["prompts"]["ids"]) != (b["prompts"]["sha256"], b["prompts"]["ids"]):
        raise DataError(f"the records are of different prompts ({_prompts(a)} and {_prompts(b)}); measure both on the same")
    ours, theirs = ({tuple(e[name] for name in _KEY): e for e in record["configurations"]} for record in (a, b))
    shared = [key for key in ours if key in theirs]
    if not shared:
        raise DataError(
            "the records share no configuration: proposer, rule, dtype, batch, temperature and lengths must be equal"
        )
    _refuse_other_sampling(a, b, any(key[_KEY.index("temperature")] for key in shared))
    notes = [
        f"{where} {name} are {record_a} and {record_b}"
        for where, name, record_a, record_b in (
            ("the", "models", a["model"], b["model"]),
            ("the", "engines", a["engine"], b["engine"]),
            ("the", "cache's dtypes", a.get("kv_dtype"), b.get("kv_dtype")),
            ("the", "machines", a["machine"]["cpu"], b["machine"]["cpu"]),
            ("the", "commits", a["commit"], b["commit"]),
        )
        if record_a != record_b and None not in (record_a, record_b)  # None: not known
    ]
    notes += [
        f"{_named(key)}: drafts have {ours[key]['nodes']} nodes in A and {theirs[key]['nodes']} in B"
        for key in shared
        if ours[key]["nodes"] != theirs[key]["nodes"]
    ]
    missing = tuple(_named(key) for key in ours if key not in theirs)
    notes += [f"in A alone: {name}" for name in missing]
    notes += [f"in B alone: {_named(key)}" for key in theirs if key not in ours]
    return Comparison(tuple(_compared(key, ours, theirs) for key in shared), tuple(notes), missing)


def _refuse_other_sampling(a: Record, b: Record, is_drawn: bool) -> None:
    idle = (*_OWN_AXES, *_NO_TEXT, *(() if is_drawn else _CHANCE))
    ours, theirs = (json.loads(json.dumps(record["sampling"])) for record in (a, b))  # a report's own has tuples
    for name in ours:
        if name not in idle and ours[name] != theirs.get(name):
            raise DataError(
                f"the records are of different sampling ({name} is {ours[name]} and {theirs.get(name)}), and so of different "
                "texts; measure both with the same"
            )


def _compared(key: tuple[Any, ...], ours: Mapping[Any, Entry], theirs: Mapping[Any, Entry]) -> Compared:
    a, b = ours[key], theirs[key]
    plain = (PLAIN, "exact", *key[2:])
    speed = interval([_speed(b)], [_speed(a)])
    length = interval([_length(b)], [_length(a)]) if a["steps"] and b["steps"] else None
    if key[0] == PLAIN:
        return Compared(a, b, speed, None, None)
    return Compared(a, b, speed, interval([_speed(b), _speed(ours[plain])], [_speed(a), _speed(theirs[plain])]), length)


def _speed(entry: Entry) -> Rate:
    return Rate(entry["answers"]["tokens"], entry["answers"]["seconds"])


def _length(entry: Entry) -> Rate:
    return Rate(entry["answers"]["emitted"], entry["answers"]["steps"])


def _prompts(record: Record) -> str:
    return f"{record['prompts']['number']} of {record['prompts']['name']}"


def _named(key: tuple[Any, ...]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(_KEY, key, strict=True) if value is not None)


def _described(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}
