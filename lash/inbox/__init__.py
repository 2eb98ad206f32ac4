"""Step 1 · what arrives. Pure.

Takes in messages, commands and wakes from anywhere; hands the items that a turn may work on to the turn.
"""
