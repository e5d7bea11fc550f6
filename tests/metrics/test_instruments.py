"""The instrument set: names, units and labels that every exporter can take."""

import re

from redsync.metrics.instruments import INSTRUMENTS

LABELS = {"kind", "name_group", "outcome", "reason", "node", "state"}


def test_names_are_unique_and_in_the_style_of_semantic_conventions():
    names = [instrument.name for instrument in INSTRUMENTS]
    assert len(set(names)) == len(names) >= 20
    assert all(re.fullmatch(r"redsync(\.[a-z]+(_[a-z]+)*)+", name) for name in names)


def test_no_label_takes_names_owners_or_free_text():
    assert {label for instrument in INSTRUMENTS for label in instrument.labels} == LABELS


def test_only_histograms_have_buckets_which_rise():
    for instrument in INSTRUMENTS:
        assert bool(instrument.buckets) == (instrument.sort == "histogram")
        assert list(instrument.buckets) == sorted(set(instrument.buckets))


def test_help_is_a_sentence_and_the_unit_fits():
    for instrument in INSTRUMENTS:
        assert instrument.help[0].isupper() or instrument.help[0] == "`"
        assert instrument.help.endswith(".")
        assert instrument.unit in ("s", "1") or instrument.unit[0] == "{"
