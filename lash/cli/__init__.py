"""The door from a terminal: arguments and exit codes outside, library calls inside."""
