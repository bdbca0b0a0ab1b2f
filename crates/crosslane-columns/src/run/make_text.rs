//! The instructions that give texts.

use super::Registers;
use super::texts::{self, Span, TextColumn};
use crate::program::{Ints, Mask, Step, TextFunction, Texts};
use memchr::memmem;
use std::mem;

impl Registers {
    /// Runs an instruction that gives texts.
    pub(super) fn make_text(&mut self, step: &Step, mask: Mask, sources: &[&[u8]]) {
        let Some(out) = step.text() else { unreachable!("{step:?} gives no text") };
        match *step {
            Step::Text(TextFunction::Lower, text, out) => {
                return self.map_bytes(text, out, true, mask, sources, <[u8]>::make_ascii_lowercase);
            }
            Step::Text(TextFunction::Upper, text, out) => {
                return self.map_bytes(text, out, true, mask, sources, <[u8]>::make_ascii_uppercase);
            }
            Step::Text(TextFunction::Replace { ref old, ref new }, text, out)
                if old.len() == 1 && new.len() == 1 =>
            {
                let (old, new) = (old[0], new[0]);
                return self.map_bytes(text, out, false, mask, sources, |bytes| {
                    bytes.iter_mut().for_each(|byte| *byte = if *byte == old { new } else { *byte });
                });
            }
            _ => {}
        }
        // No other instruction writes this register, so the operands are in other ones.
        let mut texts = mem::take(&mut self.texts[out.0]);
        let mut left = mem::take(&mut self.left);
        texts.clear();
        let mut room = self.room;
        let own = (sources.len() + out.0) as u32;
        let mut each = |made: &mut dyn FnMut(usize, &mut TextColumn) -> bool| {
            for (row, left) in left[..self.rows].iter_mut().enumerate() {
                if !self.counts(mask, row) {
                    texts.spans.push(Span::default());
                } else if !made(row, &mut texts) {
                    *left = 1;
                    texts.spans.truncate(row);
                    texts.spans.push(Span::default());
                }
            }
        };
        let mut ascii = true;
        match step {
            Step::Text(TextFunction::Replace { old, new }, text, _) => {
                ascii = self.texts[text.0].ascii && new.is_ascii();
                let finder = memmem::Finder::new(old);
                each(&mut |row, texts| {
                    let text = self.text_at(sources, *text, row);
                    let most = text.len() + text.len() / old.len() * new.len();
                    texts.push(own, &mut room, most, |bytes| {
                        let mut from = 0;
                        for at in finder.find_iter(text) {
                            bytes.extend_from_slice(&text[from..at]);
                            bytes.extend_from_slice(new);
                            from = at + old.len();
                        }
                        bytes.extend_from_slice(&text[from..]);
                    })
                });
            }
            Step::Text(_, text, _) | Step::Slice(text, ..) | Step::Character(text, ..) => {
                let all_ascii = self.texts[text.0].ascii;
                ascii = all_ascii;
                let at = |bound: Ints, row: usize| self.ints[bound.0][row];
                each(&mut |row, texts| {
                    let span = self.texts[text.0].spans[row];
                    let whole = self.text(sources, span);
                    let part = match *step {
                        Step::Slice(_, from, to, _) => {
                            let (from, to) = (from.map(|from| at(from, row)), to.map(|to| at(to, row)));
                            texts::slice(whole, from, to, all_ascii)
                        }
                        Step::Character(_, index, _) => texts::character(whole, at(index, row), all_ascii),
                        Step::Text(ref function, ..) => texts::part(function, whole, all_ascii),
                        _ => None,
                    };
                    let Some(part) = part else { return false };
                    let offset = part.as_ptr().addr().saturating_sub(whole.as_ptr().addr()) as u32;
                    let start = span.start + if part.is_empty() { 0 } else { offset };
                    texts.spans.push(Span { start, length: part.len() as u32, ..span });
                    true
                });
            }
            Step::Concatenate(parts, _) => {
                ascii = parts.iter().all(|part| self.texts[part.0].ascii);
                each(&mut |row, texts| {
                    let length = parts.iter().map(|part| self.texts[part.0].spans[row].length as usize).sum();
                    texts.push(own, &mut room, length, |bytes| {
                        for part in parts {
                            bytes.extend_from_slice(self.text_at(sources, *part, row));
                        }
                    })
                });
            }
            Step::Repeat(text, times, _) => {
                ascii = self.texts[text.0].ascii;
                each(&mut |row, texts| {
                    let text = self.text_at(sources, *text, row);
                    // An empty text may be repeated for ever.
                    let times = if text.is_empty() { 0 } else { self.ints[times.0][row].max(0) as usize };
                    let length = text.len().saturating_mul(times);
                    texts.push(own, &mut room, length, |bytes| {
                        (0..times).for_each(|_| bytes.extend_from_slice(text))
                    })
                });
            }
            Step::IntToText(a, _) => {
                let mut buffer = itoa::Buffer::new();
                each(&mut |row, texts| {
                    let text = buffer.format(self.ints[a.0][row]);
                    texts.push(own, &mut room, text.len(), |bytes| bytes.extend_from_slice(text.as_bytes()))
                });
            }
            Step::SelectText(truth, yes, no, _) => {
                ascii = self.texts[yes.0].ascii && self.texts[no.0].ascii;
                each(&mut |row, texts| {
                    let chosen = if self.bools[truth.0][row] != 0 { yes } else { no };
                    texts.spans.push(self.texts[chosen.0].spans[row]);
                    true
                });
            }
            _ => {}
        }
        texts.ascii = ascii;
        texts.region = match step {
            Step::Text(TextFunction::Replace { .. }, ..) => Some((own, 0..texts.bytes.len() as u32)),
            Step::Text(_, text, _) | Step::Slice(text, ..) | Step::Character(text, ..) => {
                self.texts[text.0].region.clone()
            }
            Step::SelectText(..) => None,
            _ => Some((own, 0..texts.bytes.len() as u32)),
        };
        self.texts[out.0] = texts;
        self.left = left;
        self.room = room;
    }

    /// Runs a function that changes single bytes of ASCII, and no lengths. With `ascii_only`, texts
    /// that are not ASCII leave.
    fn map_bytes(
        &mut self,
        text: Texts,
        out: Texts,
        ascii_only: bool,
        mask: Mask,
        sources: &[&[u8]],
        map: impl Fn(&mut [u8]),
    ) {
        let mut texts = mem::take(&mut self.texts[out.0]);
        texts.clear();
        let own = (sources.len() + out.0) as u32;
        let from = &self.texts[text.0];
        let total: usize = from.spans.iter().map(|span| span.length as usize).sum();
        let region = from.region.as_ref().filter(|(_, range)| range.len() <= 2 * total);
        let needed = region.map_or(total, |(_, range)| range.len());
        if !texts.has_room(&mut self.room, needed) {
            texts.spans = vec![Span::default(); self.rows];
            self.texts[out.0] = texts;
            let left = mem::take(&mut self.left);
            self.left = self.leave(left, mask, |_, _| true);
            return;
        }
        match region {
            // The texts lie close together, so that all bytes are changed at once.
            Some((source, range)) => {
                let whole = Span { source: *source, start: range.start, length: range.len() as u32 };
                texts.bytes.extend_from_slice(self.text(sources, whole));
                let start = |span: &Span| span.start.saturating_sub(range.start);
                texts.spans.extend(from.spans.iter().map(|span| Span {
                    source: own,
                    start: start(span),
                    length: span.length,
                }));
            }
            None => {
                for span in &from.spans {
                    let start = texts.bytes.len() as u32;
                    texts.bytes.extend_from_slice(self.text(sources, *span));
                    texts.spans.push(Span { source: own, start, length: span.length });
                }
            }
        }
        if ascii_only && !from.ascii {
            let mut left = mem::take(&mut self.left);
            for (row, left) in left[..self.rows].iter_mut().enumerate() {
                *left |= u8::from(self.counts(mask, row) && !self.text_at(sources, text, row).is_ascii());
            }
            self.left = left;
        }
        map(&mut texts.bytes);
        texts.region = Some((own, 0..texts.bytes.len() as u32));
        // The other rows have left, or do not count.
        texts.ascii = ascii_only || from.ascii;
        self.texts[out.0] = texts;
    }
}
