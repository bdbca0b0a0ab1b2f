//! Makes JavaScript of TypeScript. Blanks replace the types, so lines and columns do not change.

use super::unreadable::Unreadable;
use std::sync::{Arc, Mutex};
use swc_common::errors::{DiagnosticBuilder, Emitter, Handler};
use swc_common::sync::Lrc;
use swc_common::{FilePathMapping, GLOBALS, Globals, SourceMap};
use swc_ts_fast_strip::Options;

/// Replaces types with blanks.
///
/// # Errors
/// If the text is not TypeScript, or has TypeScript syntax that is more than types.
pub(crate) fn strip_types(text: String) -> Result<String, Unreadable> {
    let map = Lrc::new(SourceMap::new(FilePathMapping::empty()));
    let first = First { map: Lrc::clone(&map), found: Arc::new(Mutex::new(None)) };
    let found = Arc::clone(&first.found);
    let handler = Handler::with_emitter(false, false, Box::new(first));
    let options = Options { module: Some(true), ..Options::default() };
    let stripped = GLOBALS.set(&Globals::new(), || swc_ts_fast_strip::operate(&map, &handler, text, options));
    stripped.map(|output| output.code).map_err(|error| {
        let first = found.lock().ok().and_then(|mut found| found.take());
        first.unwrap_or(Unreadable { message: error.message, place: None })
    })
}

/// Keeps only the first message, because it is the cause of the others.
struct First {
    map: Lrc<SourceMap>,
    found: Arc<Mutex<Option<Unreadable>>>,
}

impl Emitter for First {
    fn emit(&mut self, message: &mut DiagnosticBuilder<'_>) {
        let Ok(mut found) = self.found.lock() else { return };
        found.get_or_insert_with(|| {
            let place = message.span.primary_span().map(|span| self.map.lookup_char_pos(span.lo));
            Unreadable { message: message.message(), place: place.map(|at| (at.line, at.col.0 + 1)) }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_become_blanks() {
        let text = "type A = {\n  a: number;\n};\nexport const f = (a: A): number => a.a as number;\n";
        let code = strip_types(text.to_owned()).unwrap();
        assert_eq!(code.lines().count(), 4);
        assert_eq!(code.lines().nth(3).unwrap().split_whitespace().collect::<Vec<_>>().join(" "), {
            "export const f = (a ) => a.a ;"
        });
    }

    #[test]
    fn errors_have_a_place() {
        let wrong = strip_types("const a: = 1;".to_owned()).unwrap_err();
        assert_eq!(wrong.place.map(|(line, _)| line), Some(1));
        let not_only_types = strip_types("\nenum A { B }\n".to_owned()).unwrap_err();
        assert!(not_only_types.message.contains("enum"), "{not_only_types:?}");
        assert_eq!(not_only_types.place, Some((2, 1)));
    }
}
