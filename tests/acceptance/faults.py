"""Which test guards against which known fault of serving engines. A test is named by its node id or the start of it."""

from __future__ import annotations

from typing import Final

_TEXT: Final = "tests/server/test_characters_and_stops.py::"
_REFUSALS: Final = "tests/server/test_refusals.py::"
_FIELDS: Final = "tests/server/test_fields.py::"
_LEAVING: Final = "tests/server/test_clients_leaving.py::"
_PREEMPTION: Final = "tests/core/test_preemption.py::"
_LIMITS: Final = "tests/core/test_limits.py::"
_SCHEDULER: Final = "tests/core/test_scheduler.py::"

TESTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "B01": (
        "characters split over tokens",
        (
            f"{_TEXT}test_characters_split_over_tokens_arrive_whole_and_once",
            f"{_TEXT}test_a_broken_byte_does_not_hold_up_the_stream",
            "tests/tokenizer/test_detokenizer.py",
        ),
    ),
    "B02": (
        "stop strings that span tokens",
        (
            f"{_TEXT}test_stop_strings_end_the_text_exactly",
            f"{_TEXT}test_a_stop_string_within_a_character_s_bytes",
            "tests/server/test_stop_strings.py",
        ),
    ),
    "B04": (
        "the token limit reported as stop",
        (
            f"{_TEXT}test_the_token_limit_is_reported_as_length",
            f"{_TEXT}test_eos_on_the_last_permitted_token_is_a_stop",
            f"{_TEXT}test_the_context_s_end_before_max_tokens_is_length",
        ),
    ),
    "B05": ("requests for no work", (f"{_REFUSALS}test_b05_",)),
    "B07": ("NaN, Infinity and zero", (f"{_REFUSALS}test_b07_",)),
    "B08": ("integer ranges and types", (f"{_REFUSALS}test_b08_",)),
    "B09": ("the error path itself", (f"{_REFUSALS}test_b09_",)),
    "B11": ("log-probabilities and echo", ("tests/server/test_logprobs.py",)),
    "B13": ("seeds and neighbours", ("tests/server/test_seeds.py::test_b13_",)),
    "B14": (
        "usage in streams",
        (
            f"{_TEXT}test_usage_in_streams_is_the_usage_of_the_whole_answer",
            f"{_TEXT}test_no_usage_unless_asked_for",
            f"{_TEXT}test_stream_options_without_stream_are_refused",
            f"{_TEXT}test_an_error_in_the_stream_is_a_frame_without_done",
        ),
    ),
    "B16": (
        "fields accepted without effect",
        (
            f"{_FIELDS}test_refused_fields_",
            f"{_FIELDS}test_ignored_fields_change_nothing",
            f"{_FIELDS}test_honoured_fields_have_their_effect",
            f"{_FIELDS}test_every_honoured_field_is_shown_to_have_an_effect",
            f"{_FIELDS}test_unknown_extras_are_tolerated",
        ),
    ),
    "B17": (
        "chat templates and message shapes",
        (f"{_FIELDS}test_b17_", "tests/server/test_tool_fields.py::test_b17_", "tests/tokenizer/test_chat.py"),
    ),
    "B18": (
        "tool calls across chunks",
        ("tests/server/test_tool_call_parsers.py::test_b18_", "tests/server/test_tool_calls.py::test_b18_"),
    ),
    "B19": (
        "schemas and grammars",
        ("tests/server/test_constraints.py", "tests/server/test_structured_output.py::test_b19_"),
    ),
    "B21": ("keys and paths", ("tests/server/test_keys.py::test_b21_",)),
    "B22": ("client gone, generation goes on", (f"{_LEAVING}test_b22_",)),
    "B23": (
        "overload and amplification",
        (
            f"{_REFUSALS}test_b23_",
            f"{_LEAVING}test_b23_",
            f"{_REFUSALS}test_huge_prompts_are_refused_at_once",
            "tests/server/test_overload.py",
        ),
    ),
    "B24": (
        "a request that can never fit",
        (
            f"{_LIMITS}test_a_pool_too_small_for_one_longest_sequence_names_the_largest_that_fits",
            f"{_LIMITS}test_a_prompt_that_leaves_no_room_for_a_token_is_refused_and_others_go_on",
            f"{_PREEMPTION}test_progress_on_a_pool_of_one_longest_sequence",
            f"{_PREEMPTION}test_the_last_one_waits_for_blocks_rather_than_preempt_itself",
        ),
    ),
    "B25": (
        "the cache crosses adapters",
        (
            "tests/worker/test_adapters.py::test_each_request_has_its_own_adapters_text",
            "tests/worker/test_adapters.py::test_the_cache_knows_an_adapter_by_its_content",
            "tests/server/test_adapters.py::test_adapters_are_models_while_they_are_loaded",
        ),
    ),
    "B28": (
        "preemption loses or repeats output",
        (
            f"{_PREEMPTION}test_preempted_in_flight_the_token_owed_is_neither_lost_nor_told_twice",
            f"{_PREEMPTION}test_recomputed_tokens_are_counted_as_they_are_computed_again",
            "tests/worker/test_switches.py::test_a_pool_too_small_for_all_preempts_and_changes_nothing",
        ),
    ),
    "B30": (
        "aborts in every state",
        (
            f"{_LEAVING}test_b30_",
            f"{_SCHEDULER}test_abort_in_every_state_twice",
            f"{_SCHEDULER}test_aborting_one_of_many_that_share_a_prefix_leaves_the_others_alone",
            f"{_SCHEDULER}test_three_hundred_aborts_at_once",
        ),
    ),
    "B31": ("counters", (f"{_LEAVING}test_b31_", "tests/server/test_surface.py::test_counters_count")),
    "B33": ("health lies both ways", ("tests/server/test_engine_death.py::test_b33_", "tests/server/test_overload.py")),
    "B34": (
        "SIGTERM drops streams",
        ("tests/server/test_drain.py::test_b34_", "tests/e2e/test_drain.py::test_a_deleted_pod_"),
    ),
}


def missing(collected: list[str]) -> dict[str, list[str]]:
    """Return, by entry, the names in the table that no collected test has."""
    absent = {
        entry: [name for name in names if not any(each.startswith(name) for each in collected)]
        for entry, (_, names) in TESTS.items()
    }
    return {entry: names for entry, names in absent.items() if names}


def tests_of(entry: str, collected: list[str]) -> list[str]:
    """Return the collected tests of one entry."""
    return [each for each in collected if each.startswith(TESTS[entry][1])]
