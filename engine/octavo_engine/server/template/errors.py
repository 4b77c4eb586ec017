"""What a chat cannot be rendered for."""

from __future__ import annotations


class TemplateError(ValueError):
    """A conversation that this model's chat template refuses, or a template that fails: the client's 400.

    The message is for the client; `param` names the field at fault.
    """

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param
