"""What the fleet's acceptance says of a cell: cells won, ratios, domination and losses, from given runs."""

import math

import pytest

from octavo_operator.simulate.cell import Cell, Point
from octavo_operator.simulate.result import Objective
from octavo_operator.simulate.sweep import Spread
from tests.acceptance.fleet_cells import cells, judge, run_cell
from tests.acceptance.fleet_faults import fault_runs

CELL = Cell("step", 30.0, Objective(2.0))


def spread(policy: str, value: float, attainment: float, gpu_hours: float) -> Spread:
    names = dict.fromkeys(Point._fields, 0) | {"hours": 1.0}
    run = Point(**names)._replace(policy=policy, value=value, attainment=attainment, gpu_hours=gpu_hours)
    return Spread(run, 1, (attainment, attainment), (gpu_hours, gpu_hours))


def test_ours_is_judged_at_equal_attainment():
    judged = judge(
        CELL,
        [
            spread("octavo", 80, 0.99, 5.0),
            spread("octavo", 100, 0.90, 4.0),
            spread("hpa-kv", 0.80, 0.95, 4.0),
            spread("hpa-kv", 0.55, 0.995, 6.0),
            spread("kubeai", 100, 0.99, 4.9),
            spread("fixed", 4, 0.99, 4.5),
            spread("oracle", 80, 0.99, 4.0),
        ],
    )
    assert judged.gap == pytest.approx(0.25)
    against = {comparison.policy: comparison for comparison in judged.compared}
    assert against["hpa-kv"].ratios[0.90] == pytest.approx(1.0)
    assert math.isinf(against["hpa-kv"].ratios[0.995])
    assert judged.dominated_by == ["kubeai"]
    assert any("inf at 99.5%" in loss for loss in judged.losses())


def test_there_are_five_traces_and_three_cold_starts(tmp_path):
    full = cells(tmp_path, short=False)
    assert len({cell.source for cell in full}) == 5
    assert len({(cell.source, cell.cold_start) for cell in full}) == len(full) == 15


def test_a_cell_runs_from_one_end_to_the_other(tmp_path):
    cell = Cell("steady", 20.0, Objective(2.0), seconds=120.0)
    judged = run_cell(cell, 1, True, 1, print, tmp_path)
    assert judged.most_cut == 0
    assert judged.default.median.done == judged.default.median.requests
    assert (tmp_path / "steady-20s-curves.svg").exists()


def test_a_fault_run_says_what_became_of_everybody():
    run = next(fault_runs(30.0))
    assert (run.not_served, run.cut) == (0, 0)
    assert run.name in "scrape loss of 20 %"
