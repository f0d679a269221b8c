"""Training in several processes, one per GPU: each computes its share of every batch, and the gradients are summed.

`accelerate launch` or torchrun starts the processes and sets each one's rank in its environment. With one process, all
operations here do nothing. A model can be sharded (FSDP): each process then stores a part of every weight and of the
optimizer's state, and the processes must do the same passes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from metrist.errors import MissingExtra

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

#: How long processes wait for each other.
_PATIENCE = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """This process's rank among `world` processes, and its torch device."""

    device: str
    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.world > 1:
            import torch

            torch.distributed.all_reduce(tensor)
        return tensor

    def any(self, condition: bool) -> bool:
        """Return whether the condition is true in any process."""
        if self.world == 1:
            return condition
        import torch

        return bool(self.total(torch.tensor(float(condition), device=self.device)).item())

    def add_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Give every process the sum of all gradients, sent as one tensor: many small ones would take longer."""
        if self.world == 1:
            return
        import torch

        learned = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in learned:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in learned if parameter.grad is not None]
        summed = self.total(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        pieces = torch.split(summed, [gradient.numel() for gradient in gradients])
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))

    def most(self, number: int) -> int:
        """Return the greatest of the processes' numbers."""
        if self.world == 1:
            return number
        import torch

        greatest = torch.tensor(number, device=self.device)
        torch.distributed.all_reduce(greatest, op=torch.distributed.ReduceOp.MAX)
        return int(greatest)

    def leave(self) -> None:
        if self.world > 1:
            import torch

            torch.distributed.destroy_process_group()

    def wait(self) -> None:
        if self.world > 1:
            import torch

            torch.distributed.barrier()


def is_first_process() -> bool:
    """Return whether this is the process that prints."""
    return int(os.environ.get("RANK") or 0) == 0


def join_processes(device: str) -> ProcessGroup:
    """Join the processes started together with this one; `device` applies if it runs alone."""
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        return ProcessGroup(device=device)
    try:
        from accelerate import PartialState
    except ImportError:
        raise MissingExtra("training with several processes", "train") from None
    # The first process writes and evaluates the model while the others wait.
    state = PartialState(cpu=device == "cpu", timeout=_PATIENCE)
    return ProcessGroup(device=str(state.device), rank=state.process_index, world=state.num_processes)


# ---- Sharded models


def shard_model(model: Any, device: Any) -> bool:
    """Divide the weights of a model among all processes, layer by layer; return whether there are several."""
    import torch

    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return False
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(torch.device(device).type, (torch.distributed.get_world_size(),))
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return True


def gather(tensor: Any) -> Tensor:
    """Return the whole of a tensor. All processes must call this for a sharded one."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def divide_like(tensor: Tensor, target: Any) -> Tensor:
    """Return a whole tensor as the target is stored."""
    if not hasattr(target, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    divided: Tensor = distribute_tensor(tensor.to(target.device), target.device_mesh, target.placements)
    return divided
