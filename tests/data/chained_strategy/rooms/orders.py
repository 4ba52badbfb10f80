from plain import FIRST

from strategies.orders.named import gpipe_order, one_forward_one_backward_order


def made(pipeline_degree, micro_batches):
    order = gpipe_order if FIRST else one_forward_one_backward_order
    return order(pipeline_degree, micro_batches)
