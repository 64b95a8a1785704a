"""Rows out of users' files, one at a time, in bounded memory; nothing is evaluated or unpickled."""
