"""Derived names: legal, distinct, short, for every name a resource may have."""

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from octavo_operator import names

LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
RESOURCE_NAME = st.lists(LABEL, min_size=1, max_size=6).map(".".join).filter(lambda name: len(name) <= 253)
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@given(RESOURCE_NAME)
def test_derived_and_service_names_are_dns_labels(name: str) -> None:
    for made in (names.derived(name), names.service(name)):
        assert DNS_1035.fullmatch(made)
        assert len(made) <= 63
    assert len(names.derived(name)) <= names.SLUG_LENGTH + 1 + names.HASH_LENGTH


@given(RESOURCE_NAME, RESOURCE_NAME)
def test_two_names_never_share_a_derived_one(one: str, other: str) -> None:
    assume(one != other)
    assert names.derived(one) != names.derived(other)


def test_a_plain_name_is_its_services_name_and_stays_readable() -> None:
    assert names.service("assistant") == "assistant"
    assert names.derived("assistant").startswith("assistant-")
    assert names.service("a.b") == names.derived("a.b")
    assert names.derived("a.b") != names.derived("a-b")
