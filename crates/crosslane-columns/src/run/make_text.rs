//! The instructions that give texts.

use super::texts::{self, Span, TextColumn};
use super::{Registers, floats, time};
use crate::program::{Mask, Step, TextFunction, Texts};
use crate::strftime;
use memchr::memmem;
use std::mem;
use std::ops::Range;

/// The most characters of an int with commas.
const MOST_DIGITS: usize = 30;
/// The most characters of a float with 100 digits behind its point, and commas before it.
const MOST_FLOAT_DIGITS: usize = 600;

impl Registers {
    /// Runs an instruction that gives texts.
    pub(super) fn make_text(&mut self, step: &Step, mask: Mask, sources: &[&[u8]]) {
        match step {
            Step::Text(TextFunction::Lower, text, out) => {
                self.map_bytes(*text, *out, true, mask, sources, <[u8]>::make_ascii_lowercase);
            }
            Step::Text(TextFunction::Upper, text, out) => {
                self.map_bytes(*text, *out, true, mask, sources, <[u8]>::make_ascii_uppercase);
            }
            Step::Text(TextFunction::Replace { old, new }, text, out) => match (&old[..], &new[..]) {
                ([old], [new]) => self.map_bytes(*text, *out, false, mask, sources, |bytes| {
                    bytes.iter_mut().for_each(|byte| *byte = if byte == old { *new } else { *byte });
                }),
                _ => self.replace(old, new, *text, *out, mask, sources),
            },
            Step::Text(TextFunction::Words { separator }, text, out) => {
                let all_ascii = self.texts[text.0].ascii;
                self.texts(mask, *out, separator.is_ascii(), |this, row, texts| {
                    let text = this.text_at(sources, *text, row);
                    let most = text.len() + text.len().div_ceil(2) * separator.len();
                    (all_ascii || text.is_ascii())
                        && texts.push(&this.room, most, |bytes| texts::join_words(text, separator, bytes))
                });
            }
            Step::Text(TextFunction::Strip { left, right, bytes }, text, out) => {
                self.part(*text, *out, mask, sources, |_, _, text, ascii| {
                    texts::strip(text, *left, *right, bytes.as_deref(), ascii)
                });
            }
            Step::Text(TextFunction::Capitalize, text, out) => {
                self.padded(*text, *out, 0, mask, sources, texts::capitalize);
            }
            Step::Text(TextFunction::Title, text, out) => {
                self.padded(*text, *out, 0, mask, sources, texts::title);
            }
            Step::Text(TextFunction::SwapCase, text, out) => {
                self.map_bytes(*text, *out, true, mask, sources, texts::swap_case);
            }
            Step::Text(TextFunction::RemovePrefix(prefix), text, out) => {
                self.part(*text, *out, mask, sources, |_, _, text, _| {
                    Some(if text.starts_with(prefix) { prefix.len() } else { 0 }..text.len())
                });
            }
            Step::Text(TextFunction::RemoveSuffix(suffix), text, out) => {
                self.part(*text, *out, mask, sources, |_, _, text, _| {
                    Some(0..text.len() - if text.ends_with(suffix) { suffix.len() } else { 0 })
                });
            }
            Step::Text(TextFunction::ZeroFill(width), text, out) => {
                self.padded(*text, *out, *width, mask, sources, |text, bytes| {
                    texts::zero_fill(text, *width, bytes);
                });
            }
            Step::Text(TextFunction::Format(format), text, out) => {
                self.padded(*text, *out, format.width(), mask, sources, |text, bytes| {
                    format.text(text, bytes)
                });
            }
            Step::Text(TextFunction::Word { index }, text, out) => {
                self.part(*text, *out, mask, sources, |_, _, text, ascii| {
                    texts::word(text, *index).filter(|_| ascii || text.is_ascii())
                });
            }
            Step::Text(TextFunction::Element { separator, index }, text, out) => {
                let finder = memmem::Finder::new(separator);
                self.part(*text, *out, mask, sources, |_, _, text, _| texts::element(text, &finder, *index));
            }
            Step::Slice(text, from, to, out) => {
                self.part(*text, *out, mask, sources, |this, row, text, ascii| {
                    let [from, to] = [from, to].map(|bound| bound.map(|bound| this.int(bound)[row]));
                    texts::slice(text, from, to, ascii)
                });
            }
            Step::Character(text, index, out) => {
                self.part(*text, *out, mask, sources, |this, row, text, ascii| {
                    texts::character(text, this.int(*index)[row], ascii)
                });
            }
            Step::Concatenate(parts, out) => {
                let ascii = parts.iter().all(|part| self.texts[part.0].ascii);
                self.texts(mask, *out, ascii, |this, row, texts| {
                    let length = parts.iter().map(|part| this.texts[part.0].spans[row].length as usize).sum();
                    texts.push(&this.room, length, |bytes| {
                        for part in parts {
                            bytes.extend_from_slice(this.text_at(sources, *part, row));
                        }
                    })
                });
            }
            Step::Repeat(text, times, out) => {
                let ascii = self.texts[text.0].ascii;
                self.texts(mask, *out, ascii, |this, row, texts| {
                    let text = this.text_at(sources, *text, row);
                    // An empty text may be repeated for ever.
                    let times = if text.is_empty() { 0 } else { this.int(*times)[row].max(0) as usize };
                    let length = text.len().saturating_mul(times);
                    texts.push(&this.room, length, |bytes| {
                        (0..times).for_each(|_| bytes.extend_from_slice(text));
                    })
                });
            }
            Step::IntToText(a, out) => {
                let mut buffer = itoa::Buffer::new();
                self.texts(mask, *out, true, |this, row, texts| {
                    let text = buffer.format(this.int(*a)[row]);
                    texts.push(&this.room, text.len(), |bytes| bytes.extend_from_slice(text.as_bytes()))
                });
            }
            Step::FloatToText(x, out) => {
                let mut buffer = ryu::Buffer::new();
                self.texts(mask, *out, true, |this, row, texts| {
                    floats::text(this.float(*x)[row], &mut buffer).is_some_and(|text| {
                        texts.push(&this.room, text.len(), |bytes| bytes.extend_from_slice(text.as_bytes()))
                    })
                });
            }
            Step::FormatInt(format, a, out) => self.texts(mask, *out, true, |this, row, texts| {
                let most = format.width() + MOST_DIGITS;
                texts.push(&this.room, most, |bytes| format.int(this.int(*a)[row], bytes))
            }),
            Step::FormatFloat(format, x, out) => {
                let (mut buffer, most) = (String::new(), format.width() + MOST_FLOAT_DIGITS);
                self.texts_if(mask, *out, most, |this, row, bytes| {
                    format.float(this.float(*x)[row], &mut buffer, bytes)
                });
            }
            Step::TimeToText(time, format, a, out) => {
                self.texts_if(mask, *out, strftime::longest(format), |this, row, bytes| {
                    let (days, micros) = time::split(*time, this.int(*a)[row]);
                    strftime::write(format, days, micros, bytes)
                });
            }
            Step::PickText(place, table, out) => {
                let ascii = self.texts[table.0].ascii;
                self.texts(mask, *out, ascii, |this, row, texts| {
                    let spans = &this.texts[table.0].spans;
                    texts.spans.push(spans.get(this.int(*place)[row] as usize).copied().unwrap_or_default());
                    true
                });
                self.texts[out.0].region = None;
            }
            Step::SelectText(truth, yes, no, out) => {
                let ascii = self.texts[yes.0].ascii && self.texts[no.0].ascii;
                self.texts(mask, *out, ascii, |this, row, texts| {
                    let chosen = if this.bool(*truth)[row] != 0 { yes } else { no };
                    texts.spans.push(this.texts[chosen.0].spans[row]);
                    true
                });
                self.texts[out.0].region = None;
            }
            other => unreachable!("{other:?} gives no texts"),
        }
    }

    /// Runs an instruction that adds one text after the other to its register. No other instruction
    /// writes this register, so its operands are in other registers. A row leaves if `each` returns
    /// false. `ascii` says whether all texts will be ASCII.
    fn texts(
        &mut self,
        mask: Mask,
        out: Texts,
        ascii: bool,
        mut each: impl FnMut(&Self, usize, &mut TextColumn) -> bool,
    ) {
        let mut texts = mem::take(&mut self.texts[out.0]);
        let mut left = mem::take(&mut self.left);
        texts.clear();
        for (row, left) in left[..self.rows].iter_mut().enumerate() {
            let counts = mask.is_none_or(|mask| self.bool(mask)[row] != 0);
            if !counts {
                texts.spans.push(Span::default());
            } else if !each(self, row, &mut texts) {
                *left = 1;
                texts.spans.push(Span::default());
            }
        }
        texts.ascii = ascii;
        texts.region = Some((texts.number, 0..texts.bytes.len() as u32));
        self.texts[out.0] = texts;
        self.left = left;
    }

    /// Runs a function that writes ASCII of at most this length for a row. A row leaves if it returns
    /// false.
    fn texts_if(
        &mut self,
        mask: Mask,
        out: Texts,
        most: usize,
        mut write: impl FnMut(&Self, usize, &mut Vec<u8>) -> bool,
    ) {
        self.texts(mask, out, true, |this, row, texts| {
            let mut is_known = false;
            let has_room = texts.push(&this.room, most, |bytes| is_known = write(this, row, bytes));
            if has_room && !is_known {
                texts.spans.pop();
            }
            has_room && is_known
        });
    }

    /// Runs a function that gives a part of a text, without a copy. It is called with the row, the
    /// text, and whether all texts are ASCII. A row leaves if it gives None.
    fn part(
        &mut self,
        text: Texts,
        out: Texts,
        mask: Mask,
        sources: &[&[u8]],
        part: impl Fn(&Self, usize, &[u8], bool) -> Option<Range<usize>>,
    ) {
        let mut parts = mem::take(&mut self.texts[out.0]);
        let mut left = mem::take(&mut self.left);
        let from = &self.texts[text.0];
        // Texts that lie close together are found with fewer steps.
        let base = from.region.as_ref().map(|(source, _)| self.bytes(sources, *source));
        parts.clear();
        parts.spans.extend(from.spans[..self.rows].iter().zip(&mut left).enumerate().map(
            |(row, (span, left))| {
                if mask.is_some_and(|mask| self.bool(mask)[row] == 0) {
                    return Span::default();
                }
                let text = match base {
                    Some(base) if span.length > 0 => span.of(base),
                    Some(_) => &[],
                    None => self.text(sources, *span),
                };
                let part = part(self, row, text, from.ascii);
                *left |= u8::from(part.is_none());
                part.map_or_else(Span::default, |part| span.part(&part))
            },
        ));
        (parts.ascii, parts.region) = (from.ascii, from.region.clone());
        self.texts[out.0] = parts;
        self.left = left;
    }

    /// Runs a function that writes a text of the same length, or longer up to a width. Texts that are
    /// not ASCII leave.
    fn padded(
        &mut self,
        text: Texts,
        out: Texts,
        width: usize,
        mask: Mask,
        sources: &[&[u8]],
        write: impl Fn(&[u8], &mut Vec<u8>),
    ) {
        let ascii = self.texts[text.0].ascii;
        self.texts(mask, out, true, |this, row, texts| {
            let text = this.text_at(sources, text, row);
            (ascii || text.is_ascii())
                && texts.push(&this.room, text.len().max(width), |bytes| write(text, bytes))
        });
    }

    fn replace(&mut self, old: &[u8], new: &[u8], text: Texts, out: Texts, mask: Mask, sources: &[&[u8]]) {
        let ascii = self.texts[text.0].ascii && new.is_ascii();
        let finder = memmem::Finder::new(old);
        self.texts(mask, out, ascii, |this, row, texts| {
            let text = this.text_at(sources, text, row);
            let most = text.len() + text.len() / old.len() * new.len();
            texts.push(&this.room, most, |bytes| {
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
        let number = texts.number;
        let from = &self.texts[text.0];
        let spans = &from.spans[..self.rows];
        let total: usize = spans.iter().map(|span| span.length as usize).sum();
        // If the texts lie close together, all bytes are changed at once.
        let region = from.region.as_ref().filter(|(_, range)| range.len() <= 2 * total);
        let has_room = texts.has_room(&self.room, region.map_or(total, |(_, range)| range.len()));
        match region {
            _ if !has_room => texts.spans.resize(self.rows, Span::default()),
            Some((source, range)) => {
                let whole = Span { source: *source, start: range.start, length: range.len() as u32 };
                texts.bytes.extend_from_slice(self.text(sources, whole));
                texts.spans.extend(spans.iter().map(|span| Span {
                    source: number,
                    // Empty texts may lie elsewhere.
                    start: span.start.saturating_sub(range.start),
                    length: span.length,
                }));
            }
            None => {
                for span in spans {
                    let start = texts.bytes.len() as u32;
                    texts.bytes.extend_from_slice(self.text(sources, *span));
                    texts.spans.push(Span { source: number, start, length: span.length });
                }
            }
        }
        map(&mut texts.bytes);
        texts.region = Some((number, 0..texts.bytes.len() as u32));
        // Texts that are not ASCII leave, or do not count.
        let all_ascii = from.ascii;
        texts.ascii = ascii_only || all_ascii;
        self.texts[out.0] = texts;
        if !has_room || ascii_only && !all_ascii {
            self.leave(mask, |this, sink| {
                sink.costly(|row| ((), !has_room || !this.text_at(sources, text, row).is_ascii()));
            });
        }
    }
}
