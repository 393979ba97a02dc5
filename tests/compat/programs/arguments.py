"""Global arguments, set by a program after its imports, as in Megatron-LM."""

_ARGS = None


def set_args(args):
    global _ARGS
    _ARGS = args


def get_args():
    assert _ARGS is not None, "args is not initialized"
    return _ARGS
