"""Second-order attention: the attention output together with what the attention map says of itself.

Three implementations stand side by side: `reference` reads like the paper, `blocked` is for the CPU, `fused` for
the GPU. `second_order_attention` picks one; the argument `backend` or the variable ANANET_ATTENTION overrides it.
`seeded_attention` is the same through means of groups of matches.
"""

from ananet.attention.reference import FORMS, SEEDED_FORMS, Form, Seeds
from ananet.attention.second_order import BACKENDS, Backend, choose_backend, second_order_attention
from ananet.attention.seeded import move_seeds, seeded_attention

__all__ = [
    "BACKENDS",
    "FORMS",
    "SEEDED_FORMS",
    "Backend",
    "Form",
    "Seeds",
    "choose_backend",
    "move_seeds",
    "second_order_attention",
    "seeded_attention",
]
