"""What the demo trains: a small character GPT, and the text it learns, Python's own help pages.

Nothing here knows about snapshots; it is the kind of code a user already has.
"""

from collections.abc import Iterator
from itertools import islice
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

CONTEXT = 64  # characters the model sees at once
BATCH = 16
TEXT_CHARACTERS = 60_000  # small enough that the run goes through its data more than once
HEADS = 4


class Block(nn.Module):
    """Self-attention and a two-layer perceptron, each behind a layer norm and added to what came in."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width)
        self.from_heads = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def attend(self, x: Tensor) -> Tensor:
        """Mix each position with those before it; x and the result are [batch, time, width]."""
        batch, time, width = x.shape
        heads = self.to_qkv(x).view(batch, time, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        joined: Tensor = self.from_heads(mixed.transpose(1, 2).reshape(batch, time, width))
        return joined

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attend(self.before_attention(x)))
        out: Tensor = x + self.dropout(self.mlp(self.before_mlp(x)))
        return out


class GPT(nn.Module):
    """Predict the next character from up to CONTEXT characters."""

    def __init__(self, characters: int, width: int = 128, layers: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)

    def forward(self, text: Tensor, following: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats of predicting `following`; both are [batch, CONTEXT] integers."""
        x = self.dropout(self.characters(text) + self.positions.weight[: text.shape[1]])
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


class HelpPages:
    """The text: Python's help topics, cut into windows of CONTEXT characters and their successors.

    Attributes:
        characters: how many different characters occur.
        windows: [count, CONTEXT + 1] integers.
    """

    def __init__(self) -> None:
        text = "\n".join(topics[name] for name in sorted(topics))[:TEXT_CHARACTERS]
        alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
        self.characters = len(alphabet)
        self.windows = torch.tensor([alphabet[character] for character in text]).unfold(0, CONTEXT + 1, CONTEXT)


class ShuffledBatches:
    """An endless shuffling loader that can say where it stands, and go on from there.

    The order of an epoch follows from its generator's state before the epoch began; that state and the number
    of batches already handed out are therefore all there is to remember.
    """

    def __init__(self, windows: Tensor, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.loader = DataLoader(
            TensorDataset(windows), batch_size=BATCH, shuffle=True, drop_last=True, generator=self.generator
        )
        self.position = 0
        self.epoch_began_at = self.generator.get_state()

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            for (batch,) in islice(self.loader, self.position, None):
                self.position += 1
                yield batch
            self.position, self.epoch_began_at = 0, self.generator.get_state()

    def state_dict(self) -> dict[str, object]:
        return {"position": self.position, "epoch_began_at": self.epoch_began_at}

    def load_state_dict(self, state: dict[str, object]) -> None:
        position, began = state["position"], state["epoch_began_at"]
        assert isinstance(position, int) and isinstance(began, Tensor)
        self.position, self.epoch_began_at = position, began
        self.generator.set_state(began)
