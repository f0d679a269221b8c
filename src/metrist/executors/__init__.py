"""Where scoring happens: in this process, or in workers of our own. Results never depend on which."""

from __future__ import annotations

from metrist.executors.choice import choose
from metrist.executors.processes import Processes
from metrist.executors.serial import Serial
from metrist.executors.tasks import Done, Executor, Outcome, Task

__all__ = ["Done", "Executor", "Outcome", "Processes", "Serial", "Task", "choose"]
