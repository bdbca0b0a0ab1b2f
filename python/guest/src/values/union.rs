//! The members of UNIONs.

use super::vm::Vm;
use crosslane::{DataType, Field};
use crosslane_guest::{Class, Refusal, Taken, Values};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

impl<'py> Vm<'py> {
    /// The number of the member that has a tag.
    pub(super) fn tag(
        self,
        names: &[Py<PyString>],
        fields: &[Field],
        tag: &Bound<'py, PyAny>,
    ) -> Taken<usize, Self> {
        for (known, name) in names.iter().enumerate() {
            match tag.eq(name.bind(self.py)).map_err(|error| self.instead(error, Refusal::Mismatch)) {
                Ok(true) => return Ok(known),
                Ok(false) | Err(Refusal::Mismatch) => {}
                Err(failed) => return Err(failed),
            }
        }
        let (shown, due) = (self.shown(tag).map_err(Refusal::Failed)?, DataType::Union(fields.into()));
        Err(self.refused(Class::Value, &format!("returned the tag {shown}, which no member of {due} has")))
    }

    /// The one member of a UNION that is a dict of the tag and all members, as in Arrow.
    pub(super) fn member_of(
        self,
        names: &[Py<PyString>],
        fields: &[Field],
        parts: &Bound<'py, PyDict>,
    ) -> Taken<(usize, Bound<'py, PyAny>), Self> {
        let part =
            |field: &Field| parts.get_item(&field.name).map_err(Refusal::Failed)?.ok_or(Refusal::Mismatch);
        let known = self.tag(names, fields, &part(&fields[0])?)?;
        let member = part(&fields[known + 1])?;
        for (at, field) in fields[1..].iter().enumerate() {
            let other = part(field)?;
            if at != known && !self.is_null(&other) {
                let text = member.repr().map_err(Refusal::Failed)?;
                let name = &fields[known + 1].name;
                return Err(Refusal::Other(format!(", a UNION that has more than {name} := {text}")));
            }
        }
        Ok((known, member))
    }
}
