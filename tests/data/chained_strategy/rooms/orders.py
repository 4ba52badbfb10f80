from plain import FIRST

from strategies.orders.named import gpipe_order, one_forward_one_backward_order


def made(pipeline_degree, micro_batches):
    from .late import LAST  # noqa: PLC0415  loaded only once an order is asked for

    order = gpipe_order if FIRST or LAST else one_forward_one_backward_order
    return order(pipeline_degree, micro_batches)
