"""Links: found in states that real training made, against a parent that a real repository gave back."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from math import prod

import numpy as np
import pytest
import torch
from torch import nn

import chainstore as cs
from chainstore.codecs.adam import Optimizer as Arithmetic
from chainstore.codecs.adam_parameters import Predictor, parse
from chainstore.codecs.floating import same_everywhere
from chainstore.codecs.planes import Scratch
from chainstore.errors import IdMismatch
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry
from chainstore.ops.link_proof import positions
from chainstore.ops.linking import Input, Link, Memory, find_links
from chainstore.state import flatten
from tests.ops.optimizers import EightBit, Lion, Muon

AdamW, Adam, SGD = torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD
WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.norm(x))))


class Net(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(40, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.batch_norm = nn.BatchNorm1d(WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 40, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.batch_norm(x))


@dataclass
class Training:
    """A model in training, and how its state is made.

    Attributes:
        state: makes the state from what is being trained.
        truth: name of a parameter -> index in the optimizer's state.
    """

    optimize: Callable[[Net], torch.optim.Optimizer]
    net: Net = field(default_factory=Net)
    state: Callable[["Training"], dict] = lambda training: cs.capture(training.net, training.optimizer, rng=False)
    schedule: Callable | None = None
    vocabulary: int = 40

    def __post_init__(self) -> None:
        self.optimizer = self.optimize(self.net)
        self.scheduler = self.schedule(self.optimizer) if self.schedule else None

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            tokens = torch.randint(0, self.vocabulary, (64,))
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.net(tokens).float(), (tokens * 7) % 40).backward()
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()

    @property
    def truth(self) -> dict[str, int]:
        names = {id(parameter): name for name, parameter in self.net.named_parameters()}
        order = [names[id(p)] for group in self.optimizer.param_groups for p in group["params"]]
        kept = self.optimizer.state_dict()["state"]
        return {name: index for index, name in enumerate(order) if index in kept}


class Before:
    """A snapshot in a repository, as the commit path sees its parent."""

    def __init__(self, repo: cs.Repository, commit: cs.Commit) -> None:
        self.manifest: Manifest = repo[commit.id].manifest
        self._db = repo._handle.db
        self.sampled: list[Path] = []
        self.damaged: set[Path] = set()

    def read(self, entry: Entry) -> bytes:
        if entry.path in self.damaged:
            raise IdMismatch("00", "damaged for this test")
        return b"".join(self._db.read(each.chunk)[each.offset : each.offset + each.length] for each in entry.extents)

    def sample(self, entry: Entry, indices: np.ndarray) -> np.ndarray:
        self.sampled.append(entry.path)
        return self.values(entry)[indices]

    def values(self, entry: Entry) -> np.ndarray:
        assert entry.spec is not None
        return np.frombuffer(self.read(entry), np.dtype(entry.spec.dtype))


class Chain:
    """A repository that a training commits to, and the links that each commit finds to the one before."""

    def __init__(self, path) -> None:
        self.repo = cs.init(path, encrypt=False)
        self.memory = Memory()
        self.before: Before | None = None
        self.state: dict = {}

    def commit(self, state: dict) -> None:
        self.before = Before(self.repo, self.repo.commit(state))

    def links(self, state: dict) -> dict[Path, Link]:
        assert self.before is not None
        self.state, self.before.sampled = state, []
        return find_links(flatten(state), self.before.manifest, self.before.read, self.before.sample, self.memory)

    def prediction(self, path: Path, link: Link) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the bits of an array as it was, as it is, and as its link says it is."""
        assert self.before is not None and link.bases[0] == Input(path, False)
        leaves = {leaf.path: leaf for leaf in flatten(self.state)}

        def array(path: Path) -> np.ndarray:
            leaf = leaves[path]
            return np.frombuffer(leaf.source.read(0, leaf.source.nbytes), np.dtype(leaf.spec.dtype)).copy()

        bases = [array(path) if now else self.before.values(self.before.manifest[path]) for path, now in link.bases]
        truth = array(path)
        words = np.dtype(f"u{truth.itemsize}")
        guess = np.empty(truth.size, words)
        with same_everywhere():
            predictor = Arithmetic(parse(link.parameters), truth.itemsize, Scratch())
            predictor.predict([base.view(words) for base in bases], guess)
        return bases[0].view(words), truth.view(words), guess

    def exact(self, path: Path, link: Link) -> float:
        """Return which share of an array its link predicts exactly."""
        _, truth, guess = self.prediction(path, link)
        return float((guess == truth).mean())

    def gained(self, path: Path, link: Link) -> float:
        """Return how many bits a value its link saves against the difference to the parent."""
        before, truth, guess = self.prediction(path, link)
        signed = np.dtype(f"i{truth.itemsize}")
        plain, predicted = (np.abs((truth - other).view(signed).astype(np.float64)) for other in (before, guess))
        return float(np.log2((plain + 1) / (predicted + 1)).mean())


@pytest.fixture
def chain(tmp_path) -> Iterator[Chain]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    chain = Chain(tmp_path / "repo")
    yield chain
    chain.repo.close()
    torch.set_num_threads(threads)


def links_after(chain: Chain, training: Training, k: int = 1, warm: int = 15) -> dict[Path, Link]:
    """Train, commit, train k steps more and return the links to the commit."""
    training.step(warm)
    chain.commit(deepcopy(training.state(training)))
    training.step(k)
    links = chain.links(training.state(training))
    assert all(chain.gained(path, link) > 0 for path, link in links.items())  # whatever it is, it does no harm
    return links


def weights(links: Mapping[Path, Link]) -> dict[str, object]:
    """Return name of a weight -> id in the optimizer's state of the moments it was linked with."""
    found = {}
    for path, link in links.items():
        if link.role == "weight":
            assert link.exp_avg is not None
            found[str(path[-1])] = link.exp_avg[-2]
    return found


def exact(chain: Chain, links: Mapping[Path, Link], role: str) -> float:
    """Return which share of the items of all arrays of a role is predicted exactly."""
    sizes = {path: prod(chain.before.manifest[path].spec.shape) for path, link in links.items() if link.role == role}
    return sum(chain.exact(path, links[path]) * size for path, size in sizes.items()) / sum(sizes.values())


def check(chain: Chain, training: Training, links: Mapping[Path, Link], k: int, least: float = 0.99) -> None:
    """See that every weight is linked with its own moments, every second moment with its own, and that they pay."""
    assert weights(links) == training.truth
    assert all(link.k == k for link in links.values())
    if k == 1:
        assert {path[-2] for path, link in links.items() if link.role == "exp_avg_sq"} == set(training.truth.values())
        assert exact(chain, links, "weight") >= least and exact(chain, links, "exp_avg_sq") >= 0.75


def by_dimensions(kind, reverse: bool = False, **settings):
    """Return what makes an optimizer with two groups: matrices decay, vectors do not and are faster."""

    def make(net: Net):
        matrices = [p for p in net.parameters() if p.dim() > 1]
        vectors = [p for p in net.parameters() if p.dim() < 2]
        if reverse:
            matrices, vectors = matrices[::-1], vectors[::-1]
        groups = [{"params": matrices, "weight_decay": 0.1, "lr": 1e-3}, {"params": vectors, "lr": 3e-3}]
        return kind(groups[::-1] if reverse else groups, **settings)

    return make


def all_of(kind, **settings):
    return lambda net: kind(net.parameters(), **settings)


def of_learning(kind, **settings):
    return lambda net: kind([p for p in net.parameters() if p.requires_grad], **settings)


def frozen() -> Net:
    net = Net()
    for block in (net.blocks[0], net.blocks[2]):
        block.requires_grad_(False)
    return net


def handmade(training: Training) -> dict:
    return {"m": training.net.state_dict(), "o": training.optimizer.state_dict(), "step": 3}


def old_torch(training: Training) -> dict:
    """Return a state as torch wrote it before it told kinds of weight decay apart."""
    state = deepcopy(handmade(training))
    for group in state["o"]["param_groups"]:
        group.pop("decoupled_weight_decay", None)
    return state


def named(training: Training) -> dict:
    """Return a state with names for ids, as sharded training makes it."""
    names = [name for name, _ in training.net.named_parameters()]
    state = training.optimizer.state_dict()
    return {
        "model": {f"_orig_mod.{name}": value for name, value in training.net.state_dict().items()},
        "optim": {
            "state": {names[id]: kept for id, kept in state["state"].items()},
            "param_groups": [{**g, "params": [names[id] for id in g["params"]]} for g in state["param_groups"]],
        },
    }


def averaged(training: Training) -> dict:
    """Return a state in which an average of the weights comes before the weights themselves."""
    state = training.net.state_dict()
    return {
        "average": {name: value * 0.99 for name, value in state.items()},
        "model": state,
        "trainer": {"optimizers": [training.optimizer.state_dict()]},
    }


TRAININGS: dict[str, Callable[[], Training]] = {
    "AdamW": partial(Training, all_of(AdamW)),
    "AdamW, state by hand": partial(Training, all_of(AdamW), state=handmade),
    "AdamW, foreach": partial(Training, all_of(AdamW, foreach=True)),
    "AdamW, fused": partial(Training, all_of(AdamW, fused=True)),
    "AdamW, amsgrad": partial(Training, all_of(AdamW, amsgrad=True)),
    "AdamW, maximize": partial(Training, all_of(AdamW, maximize=True)),
    "AdamW, rate in a tensor": partial(Training, all_of(AdamW, lr=torch.tensor(1e-3))),
    "AdamW, groups": partial(Training, by_dimensions(AdamW)),
    "AdamW, groups in another order": partial(Training, by_dimensions(AdamW, reverse=True)),
    "AdamW, frozen blocks": partial(Training, all_of(AdamW), net=None),
    "AdamW, frozen blocks left out": partial(Training, of_learning(AdamW), net=None),
    "AdamW, tied weights": lambda: Training(all_of(AdamW), net=Net(tied=True)),
    "AdamW of an older torch": partial(Training, all_of(AdamW, weight_decay=0.1), state=old_torch),
    "Adam with weight decay": partial(Training, all_of(Adam, weight_decay=0.1)),
    "Adam of an older torch": partial(Training, all_of(Adam, weight_decay=0.1), state=old_torch),
    "AdamW, scheduled": partial(
        Training, all_of(AdamW), schedule=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 40)
    ),
    "AdamW, average first": partial(Training, all_of(AdamW), state=averaged),
    "SGD": partial(Training, all_of(SGD, lr=0.05, momentum=0.9, weight_decay=1e-4)),
    "SGD, foreach": partial(Training, all_of(SGD, lr=0.05, momentum=0.9, foreach=True)),
}


def start(name: str) -> Training:
    make = TRAININGS[name]
    return make(net=frozen()) if "frozen" in name else make()  # type: ignore[call-arg]


@pytest.mark.parametrize("name", TRAININGS)
def test_after_one_step_every_weight_follows_from_its_moments(chain, name):
    training = start(name)
    links = links_after(chain, training)
    if "average" in name:
        links = {path: link for path, link in links.items() if path[0] != "average"}
    if name.startswith("SGD"):
        assert weights(links) == training.truth
        assert all(link.predictor == Predictor.MOMENTUM for link in links.values() if link.role == "weight")
        assert exact(chain, links, "weight") > 0.99
    else:
        check(chain, training, links, 1)


@pytest.mark.parametrize("k", [2, 10])
@pytest.mark.parametrize("name", ["AdamW", "AdamW, groups in another order", "AdamW, amsgrad", "AdamW, tied weights"])
def test_after_several_steps_weights_are_found_by_how_they_moved(chain, name, k):
    training = start(name)
    check(chain, training, links_after(chain, training, k, warm=40), k)


def test_what_no_gradient_reached_is_predicted_exactly_over_several_steps(chain):
    training = Training(all_of(AdamW))
    training.step(30)
    training.vocabulary = 8  # of 40 rows
    links = links_after(chain, training, 5, warm=1)
    place = ("optimizer", "state", 0)
    for path in (("model", "tokens.weight"), (*place, "exp_avg"), (*place, "exp_avg_sq")):
        assert chain.exact(path, links[path]) >= 0.75, path


def test_names_for_ids_are_matched_whatever_stands_before_them(chain):
    training = Training(all_of(AdamW), state=named)
    links = links_after(chain, training)
    assert weights(links) == {f"_orig_mod.{name}": name for name in training.truth}
    assert exact(chain, links, "weight") > 0.99


def test_a_rate_that_is_written_nowhere_is_found_and_found_again(chain):
    training = Training(all_of(AdamW), state=handmade)
    training.step(15)
    for _ in range(3):
        chain.commit(deepcopy(handmade(training)))
        training.optimizer.param_groups[0]["lr"] = 1e-3 * float(torch.rand(()) + 1)
        training.step()
        training.optimizer.param_groups[0]["lr"] = 1.0
        links = chain.links(handmade(training))
        check(chain, training, links, 1, least=0.95)
        assert {link.hyper[0].lr for link in links.values() if link.role == "weight"} != {1.0}


@pytest.mark.parametrize("k", [1, 10])
def test_several_optimizers_over_parts_of_a_model(chain, k):
    net = Net()
    blocks = list(net.blocks.parameters())
    rest = [p for p in net.parameters() if all(p is not other for other in blocks)]
    second = AdamW(blocks, lr=2e-3)
    training = Training(lambda net: AdamW(rest), net=net)
    training.optimizer.register_step_post_hook(lambda *_: (second.step(), second.zero_grad()))

    def both(training: Training) -> dict:
        return {"opt": {"blocks": second.state_dict(), "rest": training.optimizer.state_dict()}, **net.state_dict()}

    training.state = both
    links = links_after(chain, training, k, warm=40)
    names = {id(p): name for name, p in net.named_parameters()}
    truth = {names[id(p)]: ("opt", "rest", index) for index, p in enumerate(rest)}
    truth = {name: place for name, place in truth.items() if "unused" not in name}
    truth |= {names[id(p)]: ("opt", "blocks", index) for index, p in enumerate(blocks)}
    found = {str(p[-1]): (*link.exp_avg[:2], link.exp_avg[-2]) for p, link in links.items() if link.role == "weight"}
    assert found == truth


def test_the_very_first_step_needs_no_moments_in_the_parent(chain):
    training = Training(all_of(AdamW), state=handmade)
    links = links_after(chain, training, warm=0)
    assert weights(links) == training.truth and {link.role for link in links.values()} == {"weight"}
    assert exact(chain, links, "weight") > 0.99


# ---- what is remembered --------------------------------------------------------------------------------------------


def test_what_was_proved_is_not_sampled_again(chain):
    training = Training(all_of(AdamW))
    first = links_after(chain, training)
    chain.commit(deepcopy(training.state(training)))
    training.step()
    again = chain.links(training.state(training))
    assert again.keys() >= first.keys() and exact(chain, again, "weight") > 0.99
    proved = {path for path, link in first.items() if link.role in ("weight", "exp_avg_sq")}
    assert proved and len(proved & set(chain.before.sampled)) == 4  # (looked at again, others at each commit)


def test_a_link_that_does_not_pay_is_proved_anew(chain):
    training = Training(all_of(AdamW))
    links_after(chain, training)
    path = ("model", "head.weight")
    chain.memory.forget(path)
    assert chain.links(training.state(training))[path].role == "weight" and path in chain.before.sampled


def test_of_a_momentum_without_a_count_one_weight_tells_the_number_of_steps(chain):
    training = start("SGD")
    assert weights(links_after(chain, training)) == training.truth
    chain.commit(deepcopy(training.state(training)))
    training.step(3)
    assert weights(chain.links(training.state(training))) == {}
    chain.commit(deepcopy(training.state(training)))
    training.step()
    assert weights(chain.links(training.state(training))) == training.truth
    assert len([path for path in chain.before.sampled if path[0] == "model"]) == 1


def reordered(training: Training) -> None:
    """Go on with an optimizer that lists the parameters the other way round, as a changed program does."""
    state = training.optimizer.state_dict()
    last = len(state["param_groups"][0]["params"]) - 1
    state["state"] = {last - index: kept for index, kept in state["state"].items()}
    training.optimizer = AdamW(list(training.net.parameters())[::-1])
    training.optimizer.load_state_dict(state)


@pytest.mark.parametrize("k", [1, 10])
def test_ids_that_stand_for_others_than_before_are_noticed(chain, k):
    training = Training(all_of(AdamW))
    links_after(chain, training, k, warm=40)
    reordered(training)
    chain.commit(deepcopy(training.state(training)))
    training.step(k)
    assert weights(chain.links(training.state(training))) == training.truth


def test_a_schedule_that_steps_at_another_time_than_before_is_noticed(chain):
    training = Training(all_of(AdamW), state=handmade)
    training.step(15)
    for early in (False, True):
        chain.commit(deepcopy(handmade(training)))
        for change, step in ((early, False), (False, True), (not early, False)):
            if change:
                training.optimizer.param_groups[0]["lr"] *= 0.7
            training.step(step)
        links = chain.links(handmade(training))
        check(chain, training, links, 1)


# ---- nothing, quietly ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("kind", [Lion, Muon, EightBit, torch.optim.Adafactor], ids=lambda kind: kind.__name__)
def test_optimizers_that_nobody_predicts_are_left_alone(chain, kind, k):
    links = links_after(chain, Training(all_of(kind)), k)
    if kind is Muon:  # rows that no token named keep their momentum times a constant, which is worth knowing
        links = {path: link for path, link in links.items() if chain.exact(path, link) < 0.1}
    assert links == {}


@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("kind", [torch.optim.RAdam, torch.optim.NAdam, torch.optim.Adamax], ids=lambda k: k.__name__)
def test_relatives_of_adam_are_predicted_where_that_gains_something(chain, kind, k):
    links = links_after(chain, Training(all_of(kind)), k)
    assert {path for path, link in links.items() if link.role == "exp_avg_sq"} or kind is torch.optim.Adamax or k > 1


def test_double_precision_is_predicted_too(chain):
    training = Training(all_of(AdamW), net=Net().double())
    check(chain, training, links_after(chain, training), 1, least=0.5)


def test_small_arrays_are_passed_over_where_that_is_asked(chain):
    training = Training(all_of(AdamW), state=handmade)
    links_after(chain, training)
    leaves, before = flatten(handmade(training)), chain.before
    few = find_links(leaves, before.manifest, before.read, before.sample, Memory(), least_bytes=2048)
    assert set(weights(few)) == {"tokens.weight", "head.weight"}


def test_elements_of_large_arrays_come_from_few_chunks_and_all_over_them():
    places = positions(Spec("float32", (3000, 1000)))
    assert [(start, stop) for start, stop, _ in places.parts] == [
        (0, 262_000),
        (1_048_000, 1_310_000),
        (1_834_000, 2_096_000),
        (2_882_000, 3_000_000),
    ]
    assert len(places.all) == 256 and (np.diff(places.all) > 0).all()
    assert {0, 2_999_999} < set(places.all.tolist())
    assert positions(Spec("float32", ())).all.tolist() == [0]


@pytest.mark.parametrize("k", [1, 10])
def test_weights_of_another_width_than_their_moments_are_left_alone(chain, k):
    training = Training(all_of(AdamW))

    def narrowed(training: Training) -> dict:
        weights = {name: value.bfloat16() for name, value in training.net.state_dict().items()}
        return {"model": weights, "optimizer": training.optimizer.state_dict()}

    training.state = narrowed
    links = links_after(chain, training, k, warm=40)
    assert weights(links) == {} and all(link.weight is None for link in links.values())


def test_a_state_without_optimizer_is_not_even_looked_up(chain):
    training = Training(all_of(AdamW), state=lambda training: {"model": training.net.state_dict()})
    assert links_after(chain, training) == {} and chain.before.sampled == []


def test_a_parent_of_another_structure_gives_nothing(chain):
    training = Training(all_of(AdamW), state=handmade)
    training.step(3)
    chain.commit({"nothing": torch.zeros(3), "m": {"tokens.weight": torch.zeros(2, 2)}, "o": 5})
    training.step()
    assert chain.links(handmade(training)) == {}


def test_groups_that_make_no_sense_give_nothing(chain):
    training = Training(all_of(AdamW), state=handmade)
    training.step(3)
    for spoiled in ({"params": 3}, {"params": [0, 1], "betas": "fast"}, {"params": [None, [1]]}, 7):
        state = deepcopy(handmade(training))
        state["o"]["param_groups"] = [spoiled]
        chain.commit(state)
        training.step()
        after = deepcopy(handmade(training))
        after["o"]["param_groups"] = [spoiled]
        assert weights(chain.links(after)) == {}


def test_a_damaged_parent_counts_as_absent(chain):
    training = Training(all_of(AdamW), state=handmade)
    training.step(15)
    chain.commit(deepcopy(handmade(training)))
    training.step()
    chain.before.damaged = {("m", "head.weight"), ("o", "state", 3, "step"), ("o", "state", 5, "exp_avg")}
    links = chain.links(handmade(training))
    names = {index: name for name, index in training.truth.items()}
    assert weights(links).keys() == training.truth.keys() - {"head.weight", names[3]}
    assert ("o", "state", 5, "exp_avg_sq") not in links
