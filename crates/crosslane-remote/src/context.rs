//! Trace contexts: which span of a distributed trace a call belongs to, as [W3C Trace
//! Context](https://www.w3.org/TR/trace-context/) writes it.
//!
//! A client sends a context to a server that takes them ([`crate::wire::Ask::Context`]). A thread has
//! the context that its caller has set ([`set`]), or that of the process's environment. Contexts come
//! from strangers, so only what keeps to the grammar becomes a [`TraceContext`].

use std::cell::RefCell;
use std::env;
use std::sync::{Arc, OnceLock};

/// The bytes of a `traceparent` of version 00.
const LENGTH: usize = 55;
/// The most bytes of a `tracestate`. The standard asks for at least so many.
const LONGEST_STATE: usize = 512;

/// A span, as the parent of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    parent: String,
    state: String,
}

impl TraceContext {
    /// Reads the content of the headers `traceparent` and `tracestate`. `None` if the first one is not
    /// valid. A `tracestate` that is too long, or has other characters than ASCII's printable ones, is
    /// left out.
    pub fn new(parent: &str, state: &str) -> Option<Self> {
        let (known, rest) = parent.split_at_checked(LENGTH)?;
        let mut fields = known.split('-');
        let mut field = |length: usize| {
            let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            fields.next().filter(|field| field.len() == length && field.bytes().all(is_digit))
        };
        let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let is_zero = |digits: &str| digits.bytes().all(|byte| byte == b'0');
        // Later versions may have more fields.
        let ends = if version == "00" { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
        if version == "ff" || is_zero(trace) || is_zero(span) || !ends {
            return None;
        }
        let is_fit = state.len() <= LONGEST_STATE && state.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let state = if is_fit { state } else { "" };
        Some(Self { parent: format!("00-{trace}-{span}-{flags}"), state: state.into() })
    }

    /// The content of `traceparent`, of version 00.
    pub fn parent(&self) -> &str {
        &self.parent
    }

    /// The content of `tracestate`, or an empty text.
    pub fn state(&self) -> &str {
        &self.state
    }
}

/// The context of a thread's calls.
#[derive(Debug, Clone, Default)]
pub enum Calling {
    /// That of the variables `TRACEPARENT` and `TRACESTATE` when the process first used it.
    #[default]
    Environment,
    /// This one, or none.
    Within(Option<Arc<TraceContext>>),
}

thread_local!(static CALLING: RefCell<Calling> = const { RefCell::new(Calling::Environment) });

/// Sets the context of the calls that this thread makes from now on.
pub fn set(calling: Calling) {
    // A thread that is ending makes no calls.
    let _ = CALLING.try_with(|current| current.replace(calling));
}

/// The context of a call that this thread makes now.
pub(crate) fn current() -> Option<Arc<TraceContext>> {
    static ENVIRONMENT: OnceLock<Option<Arc<TraceContext>>> = OnceLock::new();
    match CALLING.try_with(|current| current.borrow().clone()).unwrap_or_default() {
        Calling::Within(context) => context,
        Calling::Environment => ENVIRONMENT
            .get_or_init(|| {
                let parent = env::var("TRACEPARENT").ok()?;
                let state = env::var("TRACESTATE").unwrap_or_default();
                TraceContext::new(&parent, &state).map(Arc::new)
            })
            .clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn only_what_keeps_to_the_grammar_is_a_context() {
        let good = format!("00-{TRACE}-{SPAN}-01");
        let context = TraceContext::new(&good, "a=1,b=2").unwrap();
        assert_eq!((context.parent(), context.state()), (&*good, "a=1,b=2"));
        let later = TraceContext::new(&format!("cc-{TRACE}-{SPAN}-01-more"), "").unwrap();
        assert_eq!(later.parent(), good);
        let zeros = "0".repeat(32);
        for wrong in [
            String::new(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("cc-{TRACE}-{SPAN}-01more"),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("0\u{e9}-{TRACE}-{SPAN}-0"),
            "-".repeat(LENGTH),
        ] {
            assert_eq!(TraceContext::new(&wrong, ""), None, "{wrong}");
        }
        for state in ["x".repeat(LONGEST_STATE + 1), "a=\n".into(), "a=\u{e9}".into()] {
            assert_eq!(TraceContext::new(&good, &state).unwrap().state(), "");
        }
    }
}
