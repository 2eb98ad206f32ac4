"""placeholder"""
WRITES = {}
