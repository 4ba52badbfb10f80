LAST = False
