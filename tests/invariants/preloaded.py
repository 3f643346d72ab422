"""What a zygote imports before it is needed, so that no copy has to: nothing of the project."""

from __future__ import annotations

PRELOADED = ("torch.distributed", "numpy", "msgspec", "zmq.asyncio", "pytest", "hypothesis", "rich.console", "typer")
