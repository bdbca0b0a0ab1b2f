//! Tests and accesses of Ruby objects.

use crate::values::primitives::send;
use crate::values::vm::Vm;
use crosslane_guest::{Refusal, Taken};
use rb_sys::{Qnil, Qtrue, VALUE, ruby_value_type as kind};
use std::ffi::{CStr, c_int};

/// # Safety
/// With the GVL.
#[inline(always)]
pub(super) unsafe fn is(value: VALUE, wanted: kind) -> bool {
    // SAFETY: as the caller says.
    unsafe { rb_sys::RB_TYPE_P(value, wanted) }
}

/// # Safety
/// With the GVL.
pub(super) unsafe fn is_a(value: VALUE, class: VALUE) -> bool {
    // SAFETY: as the caller says.
    unsafe { rb_sys::rb_obj_is_kind_of(value, class) == Qtrue as VALUE }
}

/// # Safety
/// The value must be a String that stays alive and unchanged.
pub(super) unsafe fn bytes<'a>(string: VALUE) -> &'a [u8] {
    // SAFETY: as the caller says.
    unsafe {
        std::slice::from_raw_parts(rb_sys::RSTRING_PTR(string).cast(), rb_sys::RSTRING_LEN(string) as usize)
    }
}

/// Makes an object of a class.
///
/// # Safety
/// With the GVL, protected.
pub(super) unsafe fn object(class: VALUE, parts: &[VALUE]) -> VALUE {
    // SAFETY: as the caller says.
    unsafe { rb_sys::rb_class_new_instance(parts.len() as c_int, parts.as_ptr(), class) }
}

/// The Integer that a method returns.
///
/// # Safety
/// With the GVL, protected.
pub(super) unsafe fn part(value: VALUE, name: &CStr) -> Taken<i64, Vm> {
    // SAFETY: as the caller says.
    let part = unsafe { send(value, name, &[]) };
    if rb_sys::FIXNUM_P(part) { Ok(part as i64 >> 1) } else { Err(Refusal::Mismatch) }
}

/// An Array, the result of `to_ary`, or an Enumerable's `to_a`; not a Hash or a Struct.
///
/// # Safety
/// With the GVL, protected.
pub(super) unsafe fn array(value: VALUE) -> Taken<VALUE, Vm> {
    // SAFETY: as the caller says.
    unsafe {
        if is(value, kind::RUBY_T_ARRAY) {
            return Ok(value);
        }
        let enumerable = !is(value, kind::RUBY_T_HASH)
            && !is(value, kind::RUBY_T_STRUCT)
            && is_a(value, rb_sys::rb_mEnumerable);
        let array = if enumerable { send(value, c"to_a", &[]) } else { rb_sys::rb_check_array_type(value) };
        if array == Qnil as VALUE { Err(Refusal::Mismatch) } else { Ok(array) }
    }
}

/// # Safety
/// With the GVL, protected.
pub(super) unsafe fn is_number(value: VALUE) -> bool {
    // SAFETY: as the caller says.
    unsafe { is_a(value, rb_sys::rb_cNumeric) && !is(value, kind::RUBY_T_COMPLEX) }
}
