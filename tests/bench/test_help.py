"""Every command's help is whole on a narrow terminal, and says something of every option."""

from importlib.metadata import entry_points
from typing import get_args

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from octavo_engine.cli import app
from octavo_engine.commands.bench import perplexity
from octavo_engine.ipc.config import DType, KVCacheDType, Quantization

COLUMNS = 80


def commands(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


def everything():
    for entry in entry_points(group="octavo.commands"):
        entry.load()(app)
    return list(commands(get_command(app)))


FOUND = everything()


def options(command):
    return [parameter for parameter in command.params if parameter.param_type_name == "option"]


def test_the_commands_are_all_there():
    assert {("serve",), ("bench", "serve"), ("bench", "throughput"), ("operator",)} <= {path for path, _ in FOUND}


@pytest.mark.parametrize(("path", "command"), FOUND, ids=[" ".join(path) or "octavo" for path, _ in FOUND])
def test_no_option_is_cut_and_none_is_without_help(path, command):
    ran = CliRunner(env={"COLUMNS": str(COLUMNS), "TERMINAL_WIDTH": str(COLUMNS)}).invoke(app, [*path, "--help"])
    assert ran.exit_code == 0, ran.output
    words = set(ran.output.replace(",", " ").split())
    for option in options(command):
        assert set(option.opts) | set(option.secondary_opts) <= words
        assert option.help, option.name


def test_the_help_of_perplexity_names_every_value():
    told = next(command for path, command in FOUND if path == ("bench", perplexity.__name__))
    text = next(option.help for option in options(told) if option.name == "configurations")
    for kind in (DType, Quantization, KVCacheDType):
        assert all(value in text for value in get_args(kind))
