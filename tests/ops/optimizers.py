"""Optimizers that torch has not, or not so."""

from copy import deepcopy

import torch


class Lion(torch.optim.Optimizer):
    """Sign of a momentum; keeps what Adam keeps first, and nothing else."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                kept = self.state[p]
                kept.setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(kept["exp_avg"].lerp(p.grad, 0.1).sign_(), alpha=-group["lr"])
                kept["exp_avg"].lerp_(p.grad, 0.01)


class Muon(torch.optim.Optimizer):
    """Orthogonal steps; keeps what SGD keeps."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 0.02, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None or p.dim() != 2:
                    continue
                moment = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                moment.mul_(group["momentum"]).add_(p.grad)
                u, _, v = torch.linalg.svd(moment.float(), full_matrices=False)
                p.add_((u @ v).to(p.dtype), alpha=-group["lr"])


class EightBit(torch.optim.AdamW):
    """AdamW whose state dict holds moments in bytes with scales, as 8-bit optimizers do."""

    def state_dict(self):
        state = deepcopy(super().state_dict())
        for kept in state["state"].values():
            for number, name in enumerate(("exp_avg", "exp_avg_sq"), start=1):
                value = kept.pop(name)
                kept[f"absmax{number}"] = value.abs().max()
                kept[f"state{number}"] = (value / value.abs().max() * 127).to(torch.int8)
        return state
