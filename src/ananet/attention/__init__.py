"""Second-order attention: the attention output together with what the attention map says of itself."""

from ananet.attention.reference import FORMS, Form, second_order_attention

__all__ = ["FORMS", "Form", "second_order_attention"]
