"""Step 2 · deciding. Pure, no IO.

Takes in the items that a turn took and the outcomes of its effects; hands on what the turn becomes.
"""
