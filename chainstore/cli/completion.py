"""`chain completion`"""

import click
from click.shell_completion import get_completion_class

from chainstore.cli import app as cli
from chainstore.cli.app import App

SHELLS = ("bash", "zsh", "fish")


@cli.command(
    "completion",
    examples=[
        'chain completion bash > ~/.chain-completion && echo "source ~/.chain-completion" >> ~/.bashrc',
        "chain completion fish | source",
    ],
    codes=(),
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_obj
def command(app: App, shell: str) -> None:
    """Print a script that makes SHELL complete the commands and options of chain.

    \b
    bash   eval "$(chain completion bash)"      in ~/.bashrc
    zsh    eval "$(chain completion zsh)"       in ~/.zshrc
    fish   chain completion fish | source       in ~/.config/fish/config.fish
    """
    maker = get_completion_class(shell)
    assert maker is not None
    script = maker(click.get_current_context().find_root().command, {}, "chain", "_CHAIN_COMPLETE").source()
    app.out.result("chain.completion/1", {"shell": shell, "script": script}, script)
