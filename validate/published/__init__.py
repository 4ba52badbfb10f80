"""Published measurements beside what the simulator says.

Every number is computed when asked for; where a number was used to set a rate or an efficiency, the table says so.
"""

from validate.published.report import print_published
from validate.published.sampling_report import print_sampling

__all__ = ["print_published", "print_sampling"]
