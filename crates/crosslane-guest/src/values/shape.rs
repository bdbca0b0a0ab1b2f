//! The parts of types, and what readers and writers prepare for them.

use super::convert::Values;
use crosslane::DataType;

/// The types of the parts of a value: the elements, the fields, the key and the value, or a UNION's
/// members.
pub(crate) fn parts_of(data_type: &DataType) -> impl Iterator<Item = &DataType> {
    let inner = if let DataType::Map(entry) = data_type { entry } else { data_type };
    inner.children().skip(usize::from(matches!(data_type, DataType::Union(_))))
}

/// The shape of a type, and what `part` makes of each of its parts. `shape` also says what is known
/// of each part.
pub(crate) fn shaped<V: Values, K: Default, Part>(
    data_type: &DataType,
    known: K,
    shape: &impl Fn(&DataType, K) -> Result<(V::Shape, Vec<K>), V::Error>,
    part: impl Fn(&DataType, K) -> Result<Part, V::Error>,
) -> Result<(V::Shape, Vec<Part>), V::Error> {
    let (own, known) = shape(data_type, known)?;
    let parts = parts_of(data_type).zip(known.into_iter().chain(std::iter::repeat_with(K::default)));
    let parts = parts.map(|(data_type, known)| part(data_type, known));
    Ok((own, parts.collect::<Result<_, _>>()?))
}
