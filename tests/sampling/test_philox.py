import numpy as np
import pytest

from octavo_engine.sampling.philox import philox4x32, uniforms


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
    block = philox4x32(np.array([counter], dtype=np.uint32), np.array([key], dtype=np.uint32))
    assert tuple(block[0].tolist()) == expected


def test_a_draw_is_the_same_alone_and_among_others():
    seeds, choices, positions = [5, 5, -1, 2**63], [0, 1, 0, 7], [0, 9, 9, 10**6]
    together = uniforms(seeds, choices, positions)
    alone = [uniforms([s], [c], [p])[0] for s, c, p in zip(seeds, choices, positions, strict=True)]
    assert together.tolist() == alone


def test_seed_choice_and_position_each_change_the_draw():
    draws = uniforms([1, 2, 1, 1, 1 + 2**32], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0])
    assert len(set(draws.tolist())) == 5


def test_draws_are_uniform_on_zero_to_one():
    count = 20_000
    draws = uniforms([42] * count, [0] * count, range(count))
    assert draws.min() >= 0
    assert draws.max() < 1
    histogram = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert float(((histogram - count / 20) ** 2 / (count / 20)).sum()) < 50  # chi-squared, 19 degrees of freedom
