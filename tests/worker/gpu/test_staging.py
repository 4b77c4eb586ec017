"""What the host writes for a step stays as it is until the device has read it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo_engine.worker.gpu.staging import IN_FLIGHT, Staging, to_device

CPU = torch.device("cpu")


@pytest.fixture
def staging():
    return Staging({"rows": ((4, 2), torch.int32), "tokens": ((5,), torch.int32)}, CPU)


def test_a_name_has_its_place_for_good_and_what_is_written_may_be_shorter(staging):
    whole = staging.tensors["rows"]
    for rows in (4, 1, 3):
        values = np.arange(2 * rows, dtype=np.int32).reshape(rows, 2) + rows
        staging.begin()
        found = staging.write("rows", values)
        staging.end()
        assert found.data_ptr() == whole.data_ptr()
        assert found.tolist() == values.tolist()
    staging.begin()
    assert staging.write("rows", np.zeros((0, 2), dtype=np.int32)).shape == (0, 2)
    assert whole[3].tolist() == [10, 11], "what is beyond stays as it was"


@pytest.mark.parametrize("shape", [(5, 2), (4, 3), (4,)])
def test_what_does_not_fit_is_refused(staging, shape):
    staging.begin()
    with pytest.raises(ValueError, match=r"rows has room for \(4, 2\)"):
        staging.write("rows", np.zeros(shape, dtype=np.int32))


class Read:
    """When the device has read a copy: notes that somebody waited for it."""

    def __init__(self):
        self.waited = False

    def synchronize(self):
        self.waited = True


def test_a_copy_is_written_again_only_once_the_device_has_read_it(staging):
    events = []
    for step in range(2 * IN_FLIGHT):
        staging.begin()
        assert [event.waited for event in events] == [index <= step - IN_FLIGHT for index in range(step)]
        staging.write("tokens", np.full(5, step, dtype=np.int32))
        events.append(Read())
        staging._read[staging._turn] = events[-1]
        held = sorted(int(copies["tokens"][0]) for copies in staging._host)
        assert held[-min(step + 1, IN_FLIGHT) :] == list(range(max(0, step + 1 - IN_FLIGHT), step + 1))


def test_a_tensor_of_its_own_is_not_the_array_it_was_made_of():
    values = np.arange(12, dtype=np.int64).reshape(3, 4)
    column = to_device(values[:, 1], CPU)
    values[:] = 0
    assert column.tolist() == [1, 5, 9]
