"""A model's chat template: conversations to prompts in which only the template writes control tokens.

The template is compiled twice: as it is, and with every control token in the text *it* writes replaced by that token's
secret spelling. If the second rendering, spelled back, is the first one, then the spelled tokens are exactly those the
template wrote whole, and nothing a user wrote can be among them, however the template cut or joined it.

Templates that put a token together around a value (`'<|' + role + '|>'`) leave a token the first proof does not see.
Then the conversation is rendered again with the characters tokens are made of masked in everything but roles: tokens
found there are the template's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import jinja2
import jinja2.meta

from octavo_engine.server.template.budget import Budget, BudgetExceeded, spending
from octavo_engine.server.template.environment import SandboxEnvironment, bound_loops, make_environment
from octavo_engine.server.template.errors import TemplateError
from octavo_engine.server.template.literals import concatenates_arguments, iterates_parts, rewrite_written_text
from octavo_engine.server.template.mask import Mask
from octavo_engine.server.template.messages import Reads, plain_messages, plain_variables

_FAILURES: Final = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""What a template's own mistakes raise, beside Jinja's errors."""


class ControlSpelling(Protocol):
    """The control tokens and their secret spellings."""

    @property
    def ids(self) -> Mapping[str, int]:
        """Control tokens by text."""
        ...

    def spelling(self, text: str) -> str:
        """Return one token's spelling."""
        ...

    def spell(self, text: str) -> str:
        """Spell every control token in a text."""
        ...

    def unspell(self, spelled: str) -> str:
        """Return the text of a spelled one."""
        ...

    def count(self, spelled: str) -> int:
        """Return how many control tokens are spelled in a text."""
        ...

    def occurrences(self, text: str) -> list[tuple[int, int]]:
        """Return where control tokens stand in a text."""
        ...


def reads_tools(source: str) -> bool:
    """Return whether a template tells the model of `tools`; one that cannot be parsed tells it nothing."""
    try:
        return "tools" in jinja2.meta.find_undeclared_variables(make_environment().parse(source))
    except (jinja2.exceptions.TemplateError, BudgetExceeded, SyntaxError, *_FAILURES):
        return False


class ChatTemplate:
    """One model's template. `names` are the variables every template gets (`bos_token` …)."""

    def __init__(self, source: str, control: ControlSpelling, names: Mapping[str, str]) -> None:
        """Compile `source`. Raises `TemplateError` if it is no valid template."""
        environment = make_environment()
        self._control = control
        self._names = dict(names)
        self._spelled_names = {
            name: control.spelling(text) if text in control.ids else text for name, text in names.items()
        }
        try:
            plain, spelled = environment.parse(source), environment.parse(source)
            self._reads = Reads(
                parts=iterates_parts(plain),
                developer="developer" in source,
                calls="tool_calls" in source,
                arguments_as_text=concatenates_arguments(plain),
                short_ids="[TOOL_CALLS]" in source,
            )
            rewrite_written_text(spelled, control.spell)
            self._plain = _compile(environment, plain)
            self._spelled = _compile(environment, spelled)
        except (jinja2.exceptions.TemplateError, BudgetExceeded, SyntaxError, *_FAILURES) as error:
            raise TemplateError(f"The model's chat template cannot be used: {error}") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Return the prompt, the template's control tokens spelled. Raises `TemplateError`."""
        try:
            chat = plain_messages(messages, self._reads)
            given = {"tools": None, "documents": None, **plain_variables(variables)}
            given["add_generation_prompt"] = add_generation_prompt
            with spending(Budget()):
                return self._render(chat, given)
        except TemplateError:
            raise
        except BudgetExceeded as error:
            raise TemplateError(f"The model's chat template was stopped: {error}.") from error
        except jinja2.exceptions.TemplateError as error:
            raise TemplateError(f"The model's chat template refuses these messages: {error}") from error
        except _FAILURES as error:
            raise TemplateError(f"The model's chat template fails on these messages: {error}") from error

    def _render(self, chat: list[dict[str, Any]], given: dict[str, Any]) -> str:
        text = self._plain.render(**self._names, **given, messages=chat)
        spelled = self._render_spelled(text, chat, given)
        if spelled is not None and len(self._control.occurrences(text)) == self._control.count(spelled):
            return spelled
        masked = self._render_masked(text, chat, given)
        if masked is not None:
            return _spell_at(text, self._control.occurrences(masked), self._control)
        if spelled is not None:
            return spelled
        raise TemplateError(
            "A message holds the text of one of the model's control tokens where its chat template looks for them: "
            "remove it from the message."
        )

    def _render_spelled(self, text: str, chat: list[dict[str, Any]], given: dict[str, Any]) -> str | None:
        """Return the prompt with the tokens the template writes whole spelled; None if that changed the template."""
        try:
            spelled = self._spelled.render(**self._spelled_names, **given, messages=chat)
        except (jinja2.exceptions.TemplateError, *_FAILURES):
            # Its message could show a spelling: the first rendering had no error to show.
            return None
        return spelled if self._control.unspell(spelled) == text else None

    def _render_masked(self, text: str, chat: list[dict[str, Any]], given: dict[str, Any]) -> str | None:
        """Return the prompt with users' text masked, the same length as `text`; None if that changed the template."""
        mask = Mask.for_text(self._control.ids, text)
        roles = [message["role"] for message in chat]
        hidden = [{**mask.apply(message), "role": role} for message, role in zip(chat, roles, strict=True)]
        try:
            masked = self._plain.render(**self._names, **mask.apply(given), messages=hidden)
        except (jinja2.exceptions.TemplateError, *_FAILURES):
            return None
        return masked if mask.undo(masked) == text else None


def _compile(environment: SandboxEnvironment, tree: jinja2.nodes.Template) -> jinja2.Template:
    bound_loops(tree)
    return environment.from_string(tree)


def _spell_at(text: str, places: Iterable[tuple[int, int]], control: ControlSpelling) -> str:
    pieces = []
    at = 0
    for start, end in places:
        pieces += [text[at:start], control.spelling(text[start:end])]
        at = end
    return "".join([*pieces, text[at:]])
