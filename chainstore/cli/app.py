"""What every command is made of: the global options, the repository they name, and the page that `--help` prints."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click

from chainstore import __version__, config
from chainstore.cli import exits
from chainstore.cli.output import Output
from chainstore.cli.progress import ProgressLine
from chainstore.crypto.keys import KeyCommand, KeyFile, KeyProvider, Passphrase
from chainstore.errors import KeyRequired, RepositoryNotFound, WrongKey
from chainstore.repository import Repository, key_kinds, locate
from chainstore.repository import open as open_repository

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")


@dataclass(slots=True)
class App:
    """One run of the command line.

    Attributes:
        door: name -> one of the modules that need torch, numpy or rich; loads it.
        out: where everything is printed.
        repo, key_file, key_command, index_dir: the global options, None where they are not given.
        exit_code: what the run ends with if nothing is raised; commands set it before they print.
        so_far: what an interrupt would leave, for the person who interrupts.
    """

    door: Callable[[str], ModuleType]
    out: Output = field(default_factory=Output)
    repo: str | None = None
    key_file: str | None = None
    key_command: str | None = None
    index_dir: str | None = None
    verbose: bool = False
    no_progress: bool = False
    exit_code: int = exits.OK
    so_far: str = "nothing was changed"

    def is_in_repository(self) -> bool:
        """Tell whether a repository is named, or found upwards from here."""
        if self.repo or config.repo_from_environment():
            return True
        try:
            self.place()
        except RepositoryNotFound:
            return False
        return True

    def place(self) -> Path:
        """Return the directory of the repository: -C, else CHAIN_REPO, else found upwards from here.

        Raises:
            RepositoryNotFound: there is none; says how one is made.
        """
        given = self.repo or config.repo_from_environment()
        if given is not None:
            path = Path(given).expanduser().absolute()
            found = locate(path)
            if found is None:
                raise RepositoryNotFound(str(path))
            return found
        here = Path.cwd()
        for folder in (here, *here.parents):
            found = locate(folder)
            if found is not None:
                return found
        error = RepositoryNotFound(f"{here} or in a folder above it")
        error.hint = "make one with `chain init`, or name another with -C PATH or CHAIN_REPO"
        raise error

    @contextmanager
    def open(self, *, readonly: bool = False) -> Iterator[Repository]:
        """Open the repository for the time of a command, asking for a passphrase where only that opens it."""
        self.watch_progress()
        with self.with_key(
            lambda key, root: open_repository(
                root, readonly=readonly, key=key, index_dir=self.index_dir, observer=self.out.observe
            )
        ) as repo:
            yield repo

    def with_key(self, use: Callable[[KeyProvider | None, Path], T]) -> T:
        """Call `use` with the key that was named and the repository's directory; ask for a passphrase if need be."""
        root, key = self.place(), self.key()
        try:
            return use(key, root)
        except (KeyRequired, WrongKey):
            named = key is not None or config.key_from_environment() is not None
            if named or "passphrase" not in key_kinds(root) or not sys.stdin.isatty():
                raise
        return use(self.ask_passphrase(f"Passphrase of {root}"), root)

    def key(self) -> KeyProvider | None:
        """Return the key that --key-file or --key-command names."""
        if self.key_file and self.key_command:
            raise click.UsageError("--key-file and --key-command are two different keys; name one")
        if self.key_file:
            return KeyFile(Path(self.key_file).expanduser().absolute())
        return KeyCommand(self.key_command) if self.key_command else None

    def ask_passphrase(self, prompt: str, *, twice: bool = False) -> Passphrase:
        """Read a passphrase from the terminal, without echo."""
        text = click.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True)
        return Passphrase(text)

    def watch_progress(self) -> None:
        """Draw progress from now on, where somebody watches a terminal."""
        if sys.stderr.isatty() and not (self.no_progress or self.out.quiet or self.out.json):
            self.out.progress = ProgressLine(sys.stderr)


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that stores a global option, wherever on the line it stands."""

    def store(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            app = context.ensure_object(App)
            setattr(app.out if name in ("json", "quiet") else app, name, value)

    return store


def _print_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(App).out.result("chain.version/1", {"version": __version__}, f"chain {__version__}")
        context.exit()


def global_options(*, hidden: bool = False) -> list[click.Parameter]:
    """Return the options that may stand before and after a command."""

    def option(*names: str, store: str, **more: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_set(store), hidden=hidden, **more)

    return [
        option(
            "-C",
            "--repo",
            store="repo",
            metavar="PATH",
            help="Repository; else CHAIN_REPO, else .chain/ here or above.",
        ),
        option("--json", store="json", is_flag=True, is_eager=True, help="Print one JSON object."),
        option("-q", "--quiet", store="quiet", is_flag=True, help="Print results only."),
        option("-v", "--verbose", store="verbose", is_flag=True, help="Show where unexpected errors come from."),
        option("--no-progress", store="no_progress", is_flag=True, help="Draw no progress on the terminal."),
        option("--key-file", store="key_file", metavar="PATH", help="Key file that opens the repository."),
        option("--key-command", store="key_command", metavar="COMMAND", help="Command that prints the key."),
        option("--index-dir", store="index_dir", metavar="PATH", help="Local directory for the index."),
    ]


def version_option() -> click.Option:
    return click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version.",
    )


class _Explained(click.Command):
    """A command whose help ends with an example and its exit codes."""

    examples: Sequence[str] = ()
    codes: Sequence[int] = ()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Example" if len(self.examples) == 1 else "Examples"):
            formatter.write("".join(f"  {line}\n" for line in self.examples))
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), exits.MEANINGS[code]) for code in sorted({*exits.ALWAYS, *self.codes})])
        formatter.write_paragraph()
        formatter.write_text("Options for every command (-C, --json, -q, -v, --key-file ...) are in `chain --help`.")


class Command(_Explained):
    """A command, which takes the global options too."""


class Group(_Explained, click.Group):
    """A command that only leads to others, such as `chain key`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        check_known(ctx, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


def check_known(ctx: click.Context, name: str, names: Sequence[str]) -> None:
    """Refuse the name of a command that does not exist, and say which comes closest.

    Raises:
        UsageError: it is no option either.
    """
    if name not in names and not name.startswith("-") and not ctx.resilient_parsing:
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        raise click.UsageError(f"no command {name!r}" + (f"; did you mean {near[0]}?" if near else ""), ctx)


def command(name: str, *, examples: Sequence[str], codes: Sequence[int] = exits.READS) -> Callable[[F], click.Command]:
    """Make a function a command.

    Args:
        examples: lines to copy.
        codes: what it may end with besides 0, 1, 2 and 130.
    """

    def make(function: F) -> click.Command:
        made = click.command(name, cls=Command)(function)
        made.examples, made.codes = examples, codes
        made.params += global_options(hidden=True)
        return made

    return make


def group(name: str, *, examples: Sequence[str], codes: Sequence[int] = exits.READS) -> Callable[[F], Group]:
    """Make a function that does nothing a group of commands; as for `command`."""

    def make(function: F) -> Group:
        made = click.group(name, cls=Group)(function)
        made.examples, made.codes = examples, codes
        made.params += global_options(hidden=True)
        return made

    return make


def check_exclusive(**given: object) -> None:
    """Refuse two options that contradict each other.

    Raises:
        UsageError: more than one is given.
    """
    named = [name.replace("_", "-") for name, value in given.items() if value]
    if len(named) > 1:
        raise click.UsageError(f"--{named[0]} and --{named[1]} exclude each other")
