//! The fields of a STRUCT, read from a Ruby object.

use crate::values::objects::is;
use crate::values::shared::{self, Shared};
use crate::values::vm::Made;
use crosslane::Field;
use crosslane_gvl::Unwind;
use rb_sys::{Qundef, VALUE, ruby_value_type as kind};
use std::sync::OnceLock;

/// The Ruby objects and names that a type needs for its conversion.
#[derive(Debug)]
pub(crate) enum Shape {
    None,
    /// The values of an ENUM, or the names of a UNION's members.
    Names(Shared),
    Fields {
        /// The Struct class for this STRUCT. For rows of a table function, it is made when the
        /// first Struct comes. Such rows are rarely Structs, and the names of a Struct's members
        /// stay in the VM.
        class: OnceLock<Shared>,
        /// The fields that are written.
        parts: Vec<Part>,
        /// Whether an Array may have only the written fields.
        narrow: bool,
        /// Whether this is a row of one column. Then the column's value may replace the row.
        bare: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Part {
    /// The index of the field in the whole STRUCT.
    pub(super) place: usize,
    pub(super) symbol: Shared,
    pub(super) string: Shared,
}

impl Part {
    pub(super) fn new(place: usize, field: &Field) -> Result<Self, Unwind> {
        Ok(Self { place, symbol: shared::symbol(&field.name)?, string: shared::string(&field.name)? })
    }
}

/// The number of values that an Array has, and the expected number.
pub(super) fn width(given: usize, all: &[Field], parts: &[Part], narrow: bool) -> String {
    let values = if given == 1 { "value" } else { "values" };
    let due = |count: usize| if count == 1 { "1 is".to_owned() } else { format!("{count} are") };
    let many = all.len();
    let names = all.iter().map(|field| &field.name[..]).collect::<Vec<_>>().join(", ");
    if !narrow || parts.len() == many {
        return format!(", {given} {values} where {} due: {names}", due(many));
    }
    let wanted: Vec<_> = parts.iter().map(|part| &all[part.place].name[..]).collect();
    let due = due(wanted.len());
    format!(", {given} {values} where {due} due ({}), or all {many} ({names})", wanted.join(", "))
}

/// Whether an object is a row of a table with one column, and not the column's value. A row is an
/// Array, a Hash, or an object of a Ruby class with a method of the column's name.
///
/// # Safety
/// With the GVL, protected.
pub(super) unsafe fn is_row(value: VALUE, all: &[Field]) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        if is(value, kind::RUBY_T_ARRAY) || is(value, kind::RUBY_T_HASH) {
            return true;
        }
        let has_parts = is(value, kind::RUBY_T_STRUCT) || is(value, kind::RUBY_T_OBJECT);
        let name = &all[0].name;
        has_parts
            && rb_sys::rb_obj_respond_to(
                value,
                rb_sys::rb_intern2(name.as_ptr().cast(), name.len() as i64),
                0,
            ) != 0
    }
}

/// The class of the Structs for a STRUCT.
pub(super) fn class_of(class: &OnceLock<Shared>, fields: &[Field]) -> Made {
    if class.get().is_none() {
        let _ = class.set(shared::class(fields)?);
    }
    Ok(class.get().map_or(Qundef as VALUE, Shared::get))
}
