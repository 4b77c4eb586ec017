"""What the flags mean for what is stored, and what they refuse."""

from __future__ import annotations

import pytest

from octavo_engine.model.spec import UnsupportedModelError
from octavo_engine.worker.backends.cpu_precision import Precision, choose_precision


@pytest.mark.parametrize(
    ("flags", "stored", "expected"),
    [
        (("auto", "auto", "auto"), "Q4_1", Precision("", "int8")),
        (("auto", "auto", "auto"), "F32", Precision("BF16", "bf16")),
        (("auto", "auto", "auto"), "F16", Precision("BF16", "bf16")),
        (("auto", "none", "auto"), "Q4_1", Precision("BF16", "bf16")),
        (("bfloat16", "auto", "auto"), "Q4_1", Precision("BF16", "bf16")),
        (("float32", "auto", "auto"), "Q4_1", Precision("F32", "f32")),
        (("float32", "none", "auto"), "BF16", Precision("F32", "f32")),
        (("auto", "int8", "auto"), "BF16", Precision("INT8", "int8")),
        (("bfloat16", "int4", "auto"), "Q8_0", Precision("INT4", "int8")),
        (("auto", "auto", "bfloat16"), "Q4_1", Precision("", "bf16")),
        (("auto", "auto", "int8"), "BF16", Precision("BF16", "int8")),
        (("float32", "auto", "int8"), "F32", Precision("F32", "int8")),
    ],
)
def test_flags_choose_weights_and_cache(flags: tuple[str, str, str], stored: str, expected: Precision) -> None:
    assert choose_precision(*flags, stored) == expected


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (("float16", "auto", "auto"), "use bfloat16"),
        (("auto", "fp8", "auto"), "use int8"),
        (("float32", "int8", "auto"), "leave one of the two out"),
        (("auto", "auto", "float16"), "use bfloat16, float32, int8 or auto"),
    ],
)
def test_what_is_not_served_is_refused_with_its_remedy(flags: tuple[str, str, str], remedy: str) -> None:
    with pytest.raises(UnsupportedModelError, match=remedy):
        choose_precision(*flags, "BF16")


@pytest.mark.parametrize(
    ("weights", "kind", "columns", "delicate", "expected"),
    [
        ("", "Q4_K", 256, False, ""),
        ("", "Q5_K", 256, False, "INT8"),  # no layout of its own
        ("", "F32", 64, False, "BF16"),
        ("F32", "Q4_K", 256, False, "F32"),
        ("INT8", "BF16", 64, False, "INT8"),
        ("INT8", "BF16", 48, False, "BF16"),  # no whole groups
        ("INT4", "BF16", 64, False, "INT4"),
        ("INT4", "BF16", 64, True, "INT8"),
    ],
)
def test_each_matrix_has_a_target(weights: str, kind: str, columns: int, delicate: bool, expected: str) -> None:
    assert Precision(weights, "f32").target(kind, columns, delicate=delicate) == expected
