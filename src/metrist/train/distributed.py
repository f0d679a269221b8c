"""The processes that train together, one per GPU: each computes its share of every batch, and all add up the gradients.

With one process nothing here does anything. Several are started by `accelerate launch` (or torchrun), which tells each
its rank through the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metrist.errors import MissingExtra

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """Which of the processes this is, of how many, and the torch device it computes on."""

    device: str
    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes and tells."""
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            import torch

            torch.distributed.all_reduce(tensor)
        return tensor

    def any(self, here: bool) -> bool:
        """Whether it is so in any process."""
        if self.world == 1:
            return here
        import torch

        return bool(self.total(torch.tensor(float(here), device=self.device)).item())

    def add_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Give every process the sum of all gradients. They travel as one tensor: many small ones would take longer."""
        if self.world == 1:
            return
        import torch

        learned = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in learned:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in learned if parameter.grad is not None]
        summed = self.total(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        for gradient, piece in zip(gradients, torch.split(summed, [one.numel() for one in gradients]), strict=True):
            gradient.copy_(piece.view_as(gradient))

    def leave(self) -> None:
        """Part with the other processes, when all is done."""
        if self.world > 1:
            import torch

            torch.distributed.destroy_process_group()

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            import torch

            torch.distributed.barrier()


def is_first_process() -> bool:
    """Whether this process, of those started together, is the one that prints."""
    return int(os.environ.get("RANK") or 0) == 0


def join_processes(device: str) -> ProcessGroup:
    """The processes that this one was started with; `device` is where a process on its own computes."""
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        return ProcessGroup(device=device)
    try:
        from accelerate import PartialState
    except ImportError:
        raise MissingExtra("training with several processes", "train") from None
    state = PartialState(cpu=device == "cpu")
    return ProcessGroup(device=str(state.device), rank=state.process_index, world=state.num_processes)
