"""Chat templates: conversations to prompts, in a sandbox, with users' text kept apart from control tokens."""

from octavo_engine.server.template.chat_template import ChatTemplate, reads_tools
from octavo_engine.server.template.errors import TemplateError

__all__ = ["ChatTemplate", "TemplateError", "reads_tools"]
