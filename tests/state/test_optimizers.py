"""Every optimizer and scheduler of torch goes on from a snapshot as if it had never stopped, bit for bit."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from chainstore.testing.round_trip import round_trip
from chainstore.testing.same import assert_same

warnings.filterwarnings("ignore", category=UserWarning)
STEPS = 3

OPTIMIZERS = {
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05, lambd=0.01, t0=1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.05), amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05, foreach=True),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.05),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=3, line_search_fn="strong_wolfe"),
    "Muon": lambda p: torch.optim.Muon(p, lr=0.05),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.05),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.05, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.05),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.05),
}


class Schedule:
    """A schedule with state of its own, which LambdaLR keeps (unlike a function's)."""

    def __init__(self, decay):
        self.decay = decay

    def __call__(self, epoch):
        return self.decay**epoch


SCHEDULERS = {
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.3, 5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, Schedule(0.9)),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.3, total_iters=6),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, Schedule(0.99)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 9),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [4]
    ),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3),
}


def public_subclasses(module, base):
    classes = [value for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_")]
    return sorted({kind.__name__ for kind in classes if issubclass(kind, base) and kind is not base})


def make_model(sparse):
    torch.manual_seed(0)
    if sparse:
        return nn.Sequential(nn.Embedding(10, 4, sparse=True))
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))


def train(model, optimizer, first, steps):
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, 4, generator=generator)
        if isinstance(model[0], nn.Embedding):
            inputs = torch.randint(10, (8,), generator=generator)

        def closure(inputs=inputs):
            optimizer.zero_grad()
            loss = (model(inputs) - 0.5).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def test_every_optimizer_of_torch_is_tried():
    assert public_subclasses(torch.optim, Optimizer) == sorted(OPTIMIZERS)


def test_every_scheduler_of_torch_is_tried():
    assert public_subclasses(lr_scheduler, lr_scheduler.LRScheduler) == sorted(SCHEDULERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_from_a_snapshot_as_if_it_had_not_stopped(name):
    model = make_model(sparse=name == "SparseAdam")
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, 0, STEPS)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    back = round_trip(state)
    assert_same(state, back)
    twin = make_model(sparse=name == "SparseAdam")
    twin.load_state_dict(back["model"])
    twin_optimizer = OPTIMIZERS[name](twin.parameters())
    twin_optimizer.load_state_dict(back["optimizer"])

    train(model, optimizer, STEPS, STEPS)
    train(twin, twin_optimizer, STEPS, STEPS)
    assert_same(model.state_dict(), twin.state_dict())
    assert_same(optimizer.state_dict(), twin_optimizer.state_dict(), sharing=False)


def make_scheduler(name):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.05, momentum=0.9)
    return optimizer, SCHEDULERS[name](optimizer)


def rates(name, optimizer, scheduler, steps):
    seen = []
    for _ in range(steps):
        optimizer.step()
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        seen.append(optimizer.param_groups[0]["lr"])
    return seen


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_goes_on_from_a_snapshot_as_if_it_had_not_stopped(name):
    optimizer, scheduler = make_scheduler(name)
    rates(name, optimizer, scheduler, STEPS)
    state = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}

    back = round_trip(state)
    assert_same(copy.deepcopy(state), back, sharing=False)
    twin_optimizer, twin = make_scheduler(name)
    twin_optimizer.load_state_dict(back["optimizer"])
    twin.load_state_dict(back["scheduler"])

    assert rates(name, twin_optimizer, twin, 8) == rates(name, optimizer, scheduler, 8)


def test_the_functions_of_a_lambda_schedule_are_left_out_as_torch_leaves_them_out():
    optimizer, _ = make_scheduler("StepLR")
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)

    assert round_trip(scheduler.state_dict())["lr_lambdas"] == [None]
