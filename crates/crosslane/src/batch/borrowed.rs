//! Results that are still where the guest has written them.
//!
//! The memory of a reply belongs to the guest as well, which may change it at any time, also between two looks at the
//! same byte. So nothing in it is ever looked at in place. A reply whose last buffer is long is taken in two steps:
//!
//! 1. All before that buffer (header, node, buffer list, validity, offsets) is copied into the engine's own memory
//!    and checked there ([`crate::batch::column_before`]). What it says of the last buffer is checked against the length of
//!    the frame, which the ring has read once.
//! 2. The last buffer, an [`Borrowed`], can be copied out and nothing else: no reference to its bytes can be had. An output copies
//!    it to the place where the engine wants it ([`crate::call::Output::accept_borrowed`]), and what must be checked of it is
//!    checked on that copy, before the engine's rows refer to it.
//!
//! Then the guest gets its space back ([`crate::lane::Lane::release`]). If the guest changes the buffer meanwhile, the engine gets
//! some of the old bytes and some of the new ones, as if the guest had written these at first.

use std::marker::PhantomData;

/// Bytes that somebody else may change at any time: they can only be copied.
#[derive(Debug, Clone, Copy)]
pub struct Borrowed<'a> {
    start: *const u8,
    length: usize,
    memory: PhantomData<&'a ()>,
}

impl Borrowed<'_> {
    /// # Safety
    /// So many bytes from `start` on must be mapped as long as the result lives.
    pub unsafe fn new(start: *const u8, length: usize) -> Self {
        Self { start, length, memory: PhantomData }
    }

    /// How many bytes there are.
    pub fn length(self) -> usize {
        self.length
    }

    /// The first bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn first(self, length: usize) -> Self {
        assert!(length <= self.length, "{length} bytes of {}", self.length);
        Self { length, ..self }
    }

    /// Where they begin, for a function of another language that copies them. They must not be read otherwise.
    pub fn address(self) -> *const u8 {
        self.start
    }

    /// Copies all of them.
    ///
    /// # Safety
    /// There must be room for so many bytes at `to`.
    pub unsafe fn copy_to(self, to: *mut u8) {
        // SAFETY: the bytes are mapped, and the caller vouches for the room, which is the caller's own and so lies elsewhere. The
        // empty instruction, which may read and write any memory for all that the compiler knows, keeps it from
        // reading the bytes again later in place of their copy.
        unsafe {
            self.start.copy_to_nonoverlapping(to, self.length);
            std::arch::asm!("/* {} */", in(reg) to, options(nostack, preserves_flags));
        }
    }
}
