from ..common.public import public

__getattr__ = public(__name__, trace_map="tracing")
