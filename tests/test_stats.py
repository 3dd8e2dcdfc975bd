"""One definition of the acceptance length and of the rates."""

from __future__ import annotations

import pytest

from headstart.stats import Reliability, Stats


def counted(accepted: list[int], *, drafted: int = 4) -> Stats:
    stats = Stats()
    for hits in accepted:
        stats.record(num_drafted=drafted, depth=drafted, num_accepted=hits, num_emitted=hits + 1)
    return stats


def test_accepted_2_0_4_1_of_4_gives_the_documented_numbers() -> None:
    stats = counted([2, 0, 4, 1])
    assert (stats.num_steps, stats.num_drafted, stats.num_accepted, stats.num_emitted) == (4, 16, 7, 11)
    assert (stats.acceptance_length, stats.acceptance_rate) == (2.75, 0.4375)
    assert (stats.accepted_by_position, stats.drafted_by_position) == ([3, 2, 1, 1], [4, 4, 4, 4])
    assert stats.acceptance_by_position == [0.75, 0.5, 0.25, 0.25]
    assert stats.accepted_histogram == [1, 1, 1, 0, 1]


def test_plain_decoding_has_length_one_and_no_rates() -> None:
    stats = counted([0, 0, 0], drafted=0)
    assert (stats.acceptance_length, stats.acceptance_rate, stats.acceptance_by_position) == (1.0, 0.0, [])
    assert (Stats().acceptance_length, Stats().acceptance_rate, Stats().acceptance_by_position) == (1.0, 0.0, [])


def test_counts_of_sequences_add_up_to_those_of_one_longer_sequence() -> None:
    total = Stats(num_prompt_passes=1)
    for part in (counted([2, 0]), counted([1], drafted=1), counted([4, 1])):
        part.num_prompt_passes = 2
        total.add(part)
    together = counted([2, 0])
    together.record(num_drafted=1, depth=1, num_accepted=1, num_emitted=2)
    together.add(counted([4, 1]))
    together.num_prompt_passes = 7
    assert total == together


def test_a_tree_counts_its_nodes_as_drafted_and_its_depth_by_position() -> None:
    stats = Stats()
    stats.record(num_drafted=7, depth=2, num_accepted=1, num_emitted=2)
    assert (stats.num_drafted, stats.drafted_by_position, stats.acceptance_by_position) == (7, [1, 1], [1.0, 0.0])


def test_a_step_that_an_end_cut_short_counts_what_it_emitted() -> None:
    stats = Stats()
    stats.record(num_drafted=4, depth=4, num_accepted=2, num_emitted=2)
    assert stats.acceptance_length == 2.0


def test_adding_does_not_share_lists() -> None:
    one, total = counted([2]), Stats()
    total.add(one)
    total.record(num_drafted=4, depth=4, num_accepted=4, num_emitted=5)
    assert one.accepted_by_position == [1, 1]
    with pytest.raises(AttributeError):
        total.unknown = 1  # type: ignore[attr-defined]


def test_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    """Ten nodes at 0.25 of which 5 were accepted, and ten at 0.85 of which 9 were: (10 * 0.25 + 10 * 0.05) / 20."""
    reliability = Reliability()
    for number in range(10):
        reliability.observe(0.25, number < 5)
    other = Reliability()
    for number in range(10):
        other.observe(0.85, number < 9)
    reliability.add(other)
    assert reliability.calibration_error == pytest.approx(0.15)
    assert reliability.num_nodes[2] == reliability.num_nodes[8] == 10
    assert Reliability().calibration_error is None


def test_certain_estimates_have_a_bin() -> None:
    reliability = Reliability()
    reliability.observe(1.0, True)
    reliability.observe(0.0, False)
    assert reliability.calibration_error == 0.0
