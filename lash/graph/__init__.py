"""What a session is: an append-only tree of nodes, and the head that says where it goes on. Pure.

Takes in nothing; hands the values that every later step speaks of to the inbox, the turn, the commit and the store.
"""
