"""`chain`: finds the command, loads its module, and turns what it raises into a message and an exit code."""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

import click

from chainstore import config
from chainstore.cli import exits
from chainstore.cli.app import App, check_known, global_options, version_option
from chainstore.cli.output import Output
from chainstore.errors import ChainError

SECTIONS = {
    "Start": {
        "init": "Make a repository.",
        "demo": "Watch a training run be killed twice and lose no bit.",
        "doctor": "Look whether this machine suits chainstore.",
        "completion": "Print what makes a shell complete commands.",
    },
    "Record": {
        "commit": "Commit checkpoint files.",
        "import": "Commit checkpoints that other tools made, one commit each.",
        "estimate": "Show what a chain of these files would take.",
    },
    "Look": {
        "status": "Show where the repository stands.",
        "log": "List commits, newest first.",
        "show": "Show a commit, or one tensor or value of it.",
        "ls": "List what a snapshot holds.",
        "cat": "Print one value, tensor or file.",
        "diff": "Compare two commits, tensor by tensor.",
        "stats": "Show how much the repository holds.",
        "du": "Show where the bytes are.",
    },
    "Names": {
        "branch": "List, make or delete branches.",
        "tag": "List, make or delete tags.",
        "switch": "Go to another branch.",
        "reset": "Move a branch to another commit.",
        "rollback": "Put a branch back to where it was good.",
        "reflog": "List where a branch has been.",
        "merge-base": "Find where two branches part.",
    },
    "Restore": {"checkout": "Go to a commit, or write what it holds to files."},
    "Upkeep": {
        "forget": "Drop old snapshots by a policy, or by name.",
        "gc": "Take away what nothing leads to, and free its space.",
        "repack": "Store all history anew, smaller.",
        "verify": "Prove what is stored.",
        "rebuild-index": "Make the index anew from log and packs.",
        "config": "List, read or change settings.",
    },
    "Secure": {
        "key": "List, add, remove, rotate or export keys.",
        "rekey": "Make new keys for the data, and seal everything again.",
    },
}
_NAME_WIDTH = max(len(name) for section in SECTIONS.values() for name in section)
MOVES = """\
  command                   HEAD            the branch      files
  checkout BRANCH           to the branch   stays           none
  checkout REV              to the commit   stays           none
  checkout REV -o OUT       stays           stays           writes OUT
  switch BRANCH             to the branch   stays           none
  reset REV                 stays           to the commit   none
  rollback --to REV         stays           back to it      none; the old tip keeps a tag
"""
DOORS = {  # what needs torch, numpy or rich is loaded when a command turns to it
    "demo": "chainstore.demo.story",
    "files": "chainstore.integrations.files",
    "arrays": "chainstore.integrations.arrays",
    "safetensors": "chainstore.integrations.safetensors_files",
    "dcp": "chainstore.integrations.dcp_files",
    "hf": "chainstore.integrations.hf_files",
}


def open_door(name: str) -> ModuleType:
    """Return one of DOORS, loaded."""
    return import_module(DOORS[name])


class Chain(click.Group):
    """The group of all commands; each module is loaded when its command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        check_known(ctx, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = import_module("chainstore.cli." + cmd_name.replace("-", "_"))
        found: click.Command = module.command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(_NAME_WIDTH), text) for name, text in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("What moves what"):
            formatter.write(MOVES)
        with formatter.section("Example"):
            formatter.write('  chain init && chain commit model.pt -m "first" --step 100 && chain log\n')
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in exits.MEANINGS.items()])


GROUP = Chain(
    "chain",
    params=[*global_options(), version_option()],
    help="A Git-like, encrypted snapshot chain for training state.\n\n"
    "`chain COMMAND --help` explains a command. With --json, standard output holds exactly one object, also when a "
    'command fails: {"error": {"code", "message", "hint"}}.',
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def run(arguments: Sequence[str], app: App) -> int:
    """Run one command line and return its exit code; whatever is raised has been reported then."""
    out = app.out
    try:
        with GROUP.make_context("chain", list(arguments), obj=app) as context:
            GROUP.invoke(context)
        return app.exit_code
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return exits.USAGE
    except click.UsageError as error:
        return _report_usage(out, error)
    except click.ClickException as error:
        out.error("error", error.format_message(), "")
        return exits.ERROR
    except ChainError as error:
        out.error(error.code, str(error), error.hint)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort, EOFError):
        out.error("interrupted", f"interrupted; {app.so_far}", "")
        return exits.INTERRUPTED
    except BrokenPipeError:
        return app.exit_code  # whoever read us has enough
    except OSError as error:  # about a file that the user named; the engine has errors of its own
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        out.error("file", f"{error.filename or 'the output'}: {error.strerror or error}", "")
        return exits.STORAGE if full else exits.ERROR
    except Exception as error:
        if app.verbose:
            traceback.print_exc()
        what = f"internal error: {type(error).__name__}: {error}; please report it"
        out.error("internal", what, "" if app.verbose else "`chain -v ...` shows where it comes from")
        return exits.ERROR


def _report_usage(out: Output, error: click.UsageError) -> int:
    path = error.ctx.command_path if error.ctx is not None else "chain"
    out.error("usage", error.format_message(), f"`{path} --help` shows how it is used")
    return exits.USAGE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `chain` with the arguments of this process; returns the exit code."""
    _replace_closed_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    if config.completion_wanted():
        GROUP.main([], prog_name="chain", complete_var="_CHAIN_COMPLETE", obj=App(open_door))  # exits
    app = App(open_door, Output(color=sys.stdout.isatty() and not config.plain_text_wanted()))
    app.out.json = "--json" in arguments  # known before a wrong option ends the parse
    code = exits.OK
    try:
        code = run(arguments, app)
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or app.exit_code
        _discard_stdout()
    except OSError as error:  # a full disk behind `chain log > file`
        _discard_stdout()
        app.out.json = False
        app.out.error("output", f"the output: {error.strerror or error}", "")
        code = exits.STORAGE if error.errno in (errno.ENOSPC, errno.EDQUOT) else exits.ERROR
    return code


def _replace_closed_streams() -> None:
    """Put /dev/null where standard streams were closed, or the next file opened would become one of them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))


def _discard_stdout() -> None:
    """Keep the interpreter from complaining about a reader that has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
