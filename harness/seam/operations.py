"""What the seam calls the operations of ``torch.distributed``: of process groups by torch's names, and of stores."""

from __future__ import annotations

OPERATIONS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}

COLLECTIVES = tuple(dict.fromkeys(name for name in OPERATIONS.values() if name not in ("send", "recv")))
"""What all ranks of a group do together."""

ROOTED = ("broadcast", "reduce")
"""Those in which one rank, the root, gives or gets what the others have not, and whose root can be another."""

STORE = "store"
"""The name of the rendezvous store, as links and groups have names."""

FORM = "group.form"
"""The site at which a rank meets the others to form a group."""

STORE_CALLS = ("set", "get", "wait", "add", "check", "compare_set", "append", "multi_set", "multi_get", "delete_key")
"""What is a site of the store: ``store.get`` and so on."""
