import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_kernels.cpu._native import philox, uniform
from tests.sampling import meaning


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_the_random123_distribution(counter, key, expected):
    assert tuple(philox(counter, key)) == expected
    assert meaning.philox(counter, key) == expected


@given(seed=st.integers(0, 2**64 - 1), choice=st.integers(0, 2**32 - 1), position=st.integers(0, 2**32 - 1))
def test_a_draw_is_the_definitions(seed, choice, position):
    assert uniform(seed, choice, position) == meaning.uniform(seed, choice, position)


def test_seed_choice_and_position_each_change_the_draw():
    draws = [uniform(*key) for key in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (1 + 2**32, 0, 0))]
    assert len(set(draws)) == 5


def test_draws_are_uniform_on_zero_to_one():
    count = 20_000
    draws = np.array([uniform(42, 0, position) for position in range(count)])
    assert draws.min() >= 0
    assert draws.max() < 1
    histogram = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert float(((histogram - count / 20) ** 2 / (count / 20)).sum()) < 50  # chi-squared, 19 degrees of freedom
