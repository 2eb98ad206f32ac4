"""Step 4 · settling. Pure.

Takes in what a turn decided; hands one value to the store, and the rules by which it may land.
"""
