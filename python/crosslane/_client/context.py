"""Which span of a distributed trace calls belong to, for servers that export spans."""

from __future__ import annotations

import sys

from crosslane import _guest


def pass_on() -> None:
    """Tells the native half the span that the calls of this thread belong to from now on.

    It is the current span of OpenTelemetry, if the program has imported that. Otherwise it is that of
    the variables ``TRACEPARENT`` and ``TRACESTATE``.
    """
    # A program may be importing it now.
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    context = current().get_span_context() if current else None
    if context is None or not context.is_valid:
        _guest.set_trace_context(None, "")
        return
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    _guest.set_trace_context(parent, context.trace_state.to_header())
