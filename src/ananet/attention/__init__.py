"""Second-order attention: the attention output together with what the attention map says of itself.

Three implementations stand side by side: `reference` reads like the paper, `blocked` is for the CPU, `fused` for
the GPU. `second_order_attention` picks one; the argument `backend` or the variable ANANET_ATTENTION overrides it.
"""

from ananet.attention.reference import FORMS, Form
from ananet.attention.second_order import BACKENDS, Backend, choose_backend, second_order_attention

__all__ = ["BACKENDS", "FORMS", "Backend", "Form", "choose_backend", "second_order_attention"]
