"""Loaded by schemathesis itself (SCHEMATHESIS_HOOKS): writes down each answer to one of its cases, one line each."""

from __future__ import annotations

import json
import os

import schemathesis

ENV_CASES = "OCTAVO_SCHEMATHESIS_CASES"
"""The file to write."""
SHOWN = 2000


@schemathesis.hook
def after_call(ctx, case, response):
    """Append operation and status; of a server error the request, too, so that it can be sent again."""
    line = {"operation": case.operation.label, "status": response.status_code}
    if response.status_code >= 500:
        answer = response.content.decode(errors="replace")
        line |= {"request": case.as_curl_command()[:SHOWN], "answer": answer[:SHOWN]}
    with open(os.environ[ENV_CASES], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
