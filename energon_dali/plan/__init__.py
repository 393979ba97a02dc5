"""The order of all samples, computed on integers: plans, and what they are made of.

Nothing here reads a file. Every function gives the same values on every machine and with every numpy version, so that
an order is a function of (seed, source, stream, epoch, position), and a saved position is enough to continue it.
"""
