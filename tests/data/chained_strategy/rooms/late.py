from . import later

LAST = later.LAST
