"""Where scoring happens: in this process, or in workers of our own. Results never depend on which."""

from __future__ import annotations

from metrist.run.executors.choice import choose
from metrist.run.executors.processes import Processes
from metrist.run.executors.serial import Serial
from metrist.run.executors.tasks import Done, Executor, Outcome, Task

__all__ = ["Done", "Executor", "Outcome", "Processes", "Serial", "Task", "choose"]
