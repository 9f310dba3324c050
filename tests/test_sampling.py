# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Which cases of a test that is marked `sampled` are in `make test`."""

import importlib.util
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

PATH = Path(__file__).with_name("conftest.py")


@pytest.fixture(scope="module")
def sample():
    spec = importlib.util.spec_from_file_location("conftest_of_tests", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._sample


class Case:
    def __init__(self, *places, marks=("sampled",), name="test_it"):
        self.path, self.originalname, self.marks = PATH, name, set(marks)
        self.callspec = SimpleNamespace(indices=dict(enumerate(places)))
        self.places = places

    def get_closest_marker(self, name):
        return name in self.marks

    def add_marker(self, mark):
        self.marks.add(mark.name)


def kept(sample, cases):
    sample(cases)
    return [case.places for case in cases if not case.marks & {"slow", "night"}]


def test_a_third_is_kept_and_each_value_is_in_some(sample):
    found = kept(sample, [Case(*places) for places in itertools.product(range(3), range(5))])
    assert len(found) == 5
    assert {a for a, _ in found} == set(range(3)) and {b for _, b in found} == set(range(5))


def test_one_is_kept_where_none_would_be(sample):
    cases = [
        Case(0, marks=("sampled", "slow")),
        Case(1),
        Case(2),
        Case(3, marks=("sampled", "night")),
    ]
    assert kept(sample, cases) == [(1,)]


def test_others_are_left_alone(sample):
    cases = [Case(n, marks=()) for n in range(4)]
    assert kept(sample, cases) == [(0,), (1,), (2,), (3,)]


def test_tests_of_one_file_are_sampled_each_for_itself(sample):
    cases = [Case(1, name="test_a"), Case(2, name="test_b")]
    assert kept(sample, cases) == [(1,), (2,)]
