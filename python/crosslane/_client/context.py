"""Which span of a distributed trace calls belong to, for servers that export spans."""

from __future__ import annotations

import sys

from crosslane import _guest

#: The ``traceparent`` and the ``tracestate`` of a span. Without a ``traceparent``, the variables
#: ``TRACEPARENT`` and ``TRACESTATE`` name the span.
Context = tuple[str | None, str]


def current_context() -> Context:
    """The current span of OpenTelemetry, if the program has imported that."""
    # A program may be importing it now.
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    context = current().get_span_context() if current else None
    if context is None or not context.is_valid:
        return None, ""
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return parent, context.trace_state.to_header()


def pass_on(context: Context) -> None:
    """Tells the native half the span that the calls of this thread belong to from now on."""
    _guest.set_trace_context(*context)
