from dataclasses import dataclass

from strategies.templates.linear_pipeline import LinearPipeline

from . import orders


@dataclass(frozen=True, slots=True)
class Base(LinearPipeline):
    def order(self):
        return orders.made(self.pipeline_degree, self.micro_batches)
