//! Results that are still in the memory in which the guest wrote them.
//!
//! The guest shares the memory of a reply, and can change it at any time. It can change a byte
//! between two reads of that byte. So the engine never interprets these bytes in place. It takes a
//! reply whose last buffer is long in two steps:
//!
//! 1. It copies all bytes before that buffer (header, node, buffer list, validity, offsets) into
//!    its own memory and checks them there ([`crate::batch::column_before`]). It checks the place
//!    of the last buffer against the length of the frame. The ring has read that length once.
//! 2. The last buffer is a [`Borrowed`], which allows copies only: no caller gets a reference to
//!    its bytes. An output copies the buffer to its place in the engine's memory
//!    ([`crate::call::Output::accept_borrowed`]). The output checks this copy before the engine's
//!    rows refer to it.
//!
//! Then the guest gets the memory back ([`crate::lane::Lane::release`]). If the guest changes the
//! buffer during the copy, the engine gets a mix of old and new bytes. The guest could also have
//! written this mix at first.

use std::marker::PhantomData;

/// Bytes that the guest can change at any time. Callers can only copy them.
#[derive(Debug, Clone, Copy)]
pub struct Borrowed<'a> {
    start: *const u8,
    length: usize,
    memory: PhantomData<&'a ()>,
}

impl Borrowed<'_> {
    /// # Safety
    /// `length` bytes from `start` on must be mapped as long as the result lives.
    pub unsafe fn new(start: *const u8, length: usize) -> Self {
        Self { start, length, memory: PhantomData }
    }

    /// The number of bytes.
    pub fn length(self) -> usize {
        self.length
    }

    /// The first `length` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn first(self, length: usize) -> Self {
        assert!(length <= self.length, "{length} bytes of {}", self.length);
        Self { length, ..self }
    }

    /// The address of the first byte, for a function of another language that copies the bytes. No
    /// other read of them is allowed.
    pub fn address(self) -> *const u8 {
        self.start
    }

    /// Copies all bytes.
    ///
    /// # Safety
    /// The memory at `to` must be writable for [`Borrowed::length`] bytes.
    pub unsafe fn copy_to(self, to: *mut u8) {
        // SAFETY: the source is mapped. The caller promises that `to` is writable for that many
        // bytes. That memory belongs to the caller, so it does not overlap with the source. For the
        // compiler, the empty instruction may read and write any memory. So the compiler cannot
        // replace later reads of the copy by reads of the source.
        unsafe {
            self.start.copy_to_nonoverlapping(to, self.length);
            std::arch::asm!("/* {} */", in(reg) to, options(nostack, preserves_flags));
        }
    }
}
