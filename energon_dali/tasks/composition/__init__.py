"""Configs out of a command line, and what was meant by a wrong one."""
