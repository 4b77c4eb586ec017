"""Which test guards against which known fault of routers, as far as the picker's decisions can show it.

A test is named by its node id or the start of it. What only a running Envoy can show (drops, framing, retries on the
wire) is tested there.
"""

from __future__ import annotations

from typing import Final

_MEMBERS: Final = "tests/gateway/test_membership.py::"
_PREFIX: Final = "tests/gateway/test_prefix.py::"
_COUNTS: Final = "tests/gateway/test_counting.py::"

TESTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "B51": ("held requests at zero", ("tests/gateway/test_hold.py::test_b51_",)),
    "B56": (
        "membership: terminating, not ready, relabelled, vanished",
        (
            f"{_MEMBERS}test_b56_",
            f"{_MEMBERS}test_absence_of_news_never_empties_the_fleet",
            f"{_MEMBERS}test_with_no_news_of_any_pod_all_are_used",
            f"{_MEMBERS}test_a_subset_is_honoured_and_an_empty_one_leaves_nobody",
            "tests/gateway/test_admission.py::test_a_picker_that_knows_no_services_yet_says_so_instead_of_404",
        ),
    ),
    "B57": (
        "retries: the list of fallbacks, and what served is what is counted",
        (
            f"{_MEMBERS}test_the_list_names_every_pod_once_and_equal_news_give_equal_picks",
            f"{_MEMBERS}test_a_pod_that_refused_for_its_full_queue_is_left_alone_for_as_long_as_it_asked",
            f"{_COUNTS}test_the_endpoint_that_served_is_the_one_that_is_counted",
            f"{_COUNTS}test_counts_are_those_of_a_plain_model",
        ),
    ),
    "B58": (
        "prefix affinity makes a hot pod; silent, frozen and failing pods",
        (
            f"{_MEMBERS}test_b58_",
            f"{_PREFIX}test_b58_",
            f"{_COUNTS}test_a_pick_counts_at_once_and_one_that_never_began_is_forgotten",
            "tests/gateway/test_prefix_routing.py::test_b58_",
        ),
    ),
}
