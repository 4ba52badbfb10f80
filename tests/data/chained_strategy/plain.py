FIRST = False
