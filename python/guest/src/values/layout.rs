//! The memory of CPython's objects.
//!
//! The guest is one build for all versions, so it has only the calls of the limited API. One or two
//! calls for each value of a batch are most of what the guest itself costs. So values of the most
//! usual types are read and made in place, in the versions whose layouts are known. The layouts are
//! tried out when the module is loaded. In any other version, or in an unusual build, the guest
//! uses the calls.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ptr;
use std::sync::OnceLock;

/// The versions whose layouts are known.
const KNOWN: std::ops::RangeInclusive<(u8, u8)> = (3, 11)..=(3, 13);
/// The bits of an int's digit.
const DIGIT: u32 = 30;
/// The bits of a str's state. The bits behind them may be anything.
const STATE: u32 = 0xFF;
/// The bits that say whether a str is interned.
const INTERNED: u32 = 3;

/// The differences between the known versions.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Whether the sign and the number of digits of an int are a tag, and not a signed number.
    tagged: bool,
    /// The size word of an int that is positive and has one digit, as most ints are.
    one: isize,
    /// The bytes of a str before its ASCII text.
    text: usize,
    /// The state of a str of ASCII that is not interned.
    ascii: u32,
    /// Whether a dict has a number that changes with it.
    versions: bool,
}

#[repr(C)]
struct Int {
    base: ffi::PyObject,
    size: isize,
    digits: [u32; 2],
}

#[repr(C)]
struct Float {
    base: ffi::PyObject,
    value: f64,
}

#[repr(C)]
struct Text {
    base: ffi::PyObject,
    length: isize,
    hash: isize,
    state: u32,
    /// In 3.11, the text as C's wide characters, if other code asked for them. Later versions have
    /// no such field.
    wide: *mut u8,
}

#[repr(C)]
struct Dict {
    base: ffi::PyObject,
    used: isize,
    version: u64,
}

#[repr(C)]
struct Cell {
    base: ffi::PyObject,
    content: *mut ffi::PyObject,
}

unsafe extern "C" {
    static mut PyCell_Type: ffi::PyTypeObject;
    fn PyCell_New(content: *mut ffi::PyObject) -> *mut ffi::PyObject;
    fn PyCell_Get(cell: *mut ffi::PyObject) -> *mut ffi::PyObject;
    fn PyCell_Set(cell: *mut ffi::PyObject, content: *mut ffi::PyObject) -> std::ffi::c_int;
    fn PyUnicode_New(length: isize, most: u32) -> *mut ffi::PyObject;
}

static LAYOUT: OnceLock<Option<Layout>> = OnceLock::new();

/// The layout of this interpreter's objects, if it is known.
pub(crate) fn known() -> Option<Layout> {
    LAYOUT.get().copied().flatten()
}

/// Finds out whether the layout is known.
pub(crate) fn find(py: Python<'_>) -> PyResult<()> {
    if LAYOUT.get().is_none() {
        let layout = Layout::find(py)?;
        // Another thread may have been faster. It found the same.
        let _ = LAYOUT.set(layout);
    }
    Ok(())
}

impl Layout {
    fn find(py: Python<'_>) -> PyResult<Option<Self>> {
        let version = py.version_info();
        let sys = py.import("sys")?;
        let name: String = sys.getattr("implementation")?.getattr("name")?.extract()?;
        let flags: String = sys.getattr("abiflags")?.extract()?;
        let bits: u32 = sys.getattr("int_info")?.getattr("bits_per_digit")?.extract()?;
        let plain = name == "cpython"
            && flags.is_empty()
            && bits == DIGIT
            && cfg!(all(target_pointer_width = "64", target_endian = "little"));
        if !plain || !KNOWN.contains(&(version.major, version.minor)) {
            return Ok(None);
        }
        let tagged = version.minor >= 12;
        let (one, text) = if tagged { (1 << 3, 40) } else { (1, 48) };
        let mut layout = Self { tagged, one, text, ascii: 0, versions: version.minor <= 12 };
        // SAFETY: a str has more bytes than are read here, in any build of these versions.
        let holds = unsafe {
            let text = Bound::from_owned_ptr_or_err(py, PyUnicode_New(5, 127))?;
            layout.ascii = (*text.as_ptr().cast::<Text>()).state & STATE;
            layout.versions = layout.versions && dicts_have_versions(py)?;
            layout.holds(py)?
        };
        Ok(holds.then_some(layout))
    }

    /// Whether objects have this layout.
    ///
    /// # Safety
    /// The interpreter's version is a known one.
    unsafe fn holds(self, py: Python<'_>) -> PyResult<bool> {
        // SAFETY: the calls return new references or null; all is read and written in objects that
        // have room for it.
        unsafe {
            for value in [257, -6, 1 << 29, (1 << 30) - 1, 1 << 30, -(1 << 30), (1 << 60) - 1, 1 - (1 << 60)]
            {
                let int = Bound::from_owned_ptr_or_err(py, ffi::PyLong_FromLongLong(value))?;
                if self.integer(int.as_ptr()) != Some(value) {
                    return Ok(false);
                }
                let int = Bound::from_owned_ptr_or_err(py, new_integer())?;
                self.set_integer(int.as_ptr(), value);
                if int.extract::<i64>()? != value {
                    return Ok(false);
                }
            }
            let float = Bound::from_owned_ptr_or_err(py, ffi::PyFloat_FromDouble(1.5))?;
            let text = Bound::from_owned_ptr_or_err(
                py,
                ffi::PyUnicode_DecodeLatin1(c"abcde".as_ptr(), 5, ptr::null()),
            )?;
            let cell = Bound::from_owned_ptr_or_err(py, PyCell_New(text.as_ptr()))?;
            let made = Bound::from_owned_ptr_or_err(py, PyUnicode_New(5, 127))?;
            self.set_text(made.as_ptr(), b"abcde");
            Ok(*float_in(float.as_ptr()) == 1.5
                && self.text(text.as_ptr()) == Some(b"abcde")
                && made.eq(&text)?
                && (*cell.as_ptr().cast::<Cell>()).content == text.as_ptr())
        }
    }

    /// The value of an int of at most two digits.
    ///
    /// # Safety
    /// The object is exactly an int.
    #[inline(always)]
    pub(crate) unsafe fn integer(self, object: *mut ffi::PyObject) -> Option<i64> {
        // SAFETY: the caller says what the object is, and it has a digit.
        unsafe {
            let int = object.cast::<Int>();
            if (*int).size == self.one {
                return Some(i64::from((&raw const (*int).digits).cast::<u32>().read()));
            }
            self.any_integer(int)
        }
    }

    /// As [`Layout::integer`].
    unsafe fn any_integer(self, int: *const Int) -> Option<i64> {
        // SAFETY: an int has as many digits as it says.
        unsafe {
            let size = (*int).size;
            let (count, negative) =
                if self.tagged { (size >> 3, size & 2 != 0) } else { (size.abs(), size < 0) };
            let digit = |place: usize| i64::from((&raw const (*int).digits).cast::<u32>().add(place).read());
            let value = match count {
                0 => 0,
                1 => digit(0),
                2 => digit(1) << DIGIT | digit(0),
                _ => return None,
            };
            Some(if negative { -value } else { value })
        }
    }

    /// Whether [`Layout::set_integer`] takes a value: it has at most two digits, and CPython has no
    /// shared object for it.
    #[inline(always)]
    pub(crate) fn is_settable(value: i64) -> bool {
        Self::is_usual(value) || (!(-5..=256).contains(&value) && value.unsigned_abs() < 1 << (2 * DIGIT))
    }

    /// Whether such a value is positive and has one digit.
    #[inline(always)]
    fn is_usual(value: i64) -> bool {
        (257..1 << DIGIT).contains(&value)
    }

    /// # Safety
    /// The object is an int with room for two digits, and no other code has it. The value is one
    /// that [`Layout::is_settable`] accepts.
    #[inline(always)]
    pub(crate) unsafe fn set_integer(self, object: *mut ffi::PyObject, value: i64) {
        // SAFETY: as the caller says.
        unsafe {
            let int = object.cast::<Int>();
            if Self::is_usual(value) {
                (*int).size = self.one;
                (*int).digits[0] = value as u32;
            } else {
                self.set_any_integer(int, value);
            }
        }
    }

    /// As [`Layout::set_integer`].
    unsafe fn set_any_integer(self, int: *mut Int, value: i64) {
        let size = value.unsigned_abs();
        let digits = [size as u32 & ((1 << DIGIT) - 1), (size >> DIGIT) as u32];
        let count = 1 + isize::from(digits[1] > 0);
        // SAFETY: as the caller says.
        unsafe {
            (*int).size = match (self.tagged, value < 0) {
                (true, negative) => count << 3 | isize::from(negative) << 1,
                (false, true) => -count,
                (false, false) => count,
            };
            (*int).digits = digits;
        }
    }

    /// The text of a str, if it is ASCII.
    ///
    /// # Safety
    /// The object is exactly a str. It lives as long as the returned text.
    #[inline(always)]
    pub(crate) unsafe fn text<'a>(self, object: *mut ffi::PyObject) -> Option<&'a [u8]> {
        // SAFETY: the text of such a str lies behind its head, and each byte is a character.
        unsafe {
            let text = object.cast::<Text>();
            if (*text).state & STATE & !INTERNED != self.ascii {
                return None;
            }
            let bytes = object.cast::<u8>().add(self.text);
            Some(std::slice::from_raw_parts(bytes, (*text).length as usize))
        }
    }

    /// The longest text that fits into the memory of a text of this length. CPython takes multiples
    /// of 16 bytes.
    pub(crate) fn capacity(self, length: usize) -> usize {
        (self.text + length + 1).next_multiple_of(16) - self.text - 1
    }

    /// Whether a str has not changed since it was made, except for its hash: it is not interned,
    /// and has no copies.
    ///
    /// # Safety
    /// The object is a str that was made of ASCII.
    #[inline(always)]
    pub(crate) unsafe fn is_bare(self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: as the caller says. Later versions have text where this one has a pointer.
        unsafe {
            let text = object.cast::<Text>();
            (*text).state & STATE == self.ascii && (self.tagged || (*text).wide.is_null())
        }
    }

    /// # Safety
    /// The object is a bare str with room for the text, no other code has it, and the text is
    /// ASCII.
    #[inline(always)]
    pub(crate) unsafe fn set_text(self, object: *mut ffi::PyObject, ascii: &[u8]) {
        // SAFETY: as the caller says; the room includes a zero byte behind the text.
        unsafe {
            let text = object.cast::<Text>();
            (*text).length = ascii.len() as isize;
            (*text).hash = -1;
            let bytes = object.cast::<u8>().add(self.text);
            ptr::copy_nonoverlapping(ascii.as_ptr(), bytes, ascii.len());
            bytes.add(ascii.len()).write(0);
        }
    }
}

/// A number that changes whenever a dict changes. No two dicts ever have the same. None if dicts have no
/// such number.
pub(crate) fn dict_version(dict: &Bound<'_, PyDict>) -> Option<u64> {
    // SAFETY: the layout says that a dict begins so.
    known().filter(|layout| layout.versions).map(|_| unsafe { version_in(dict) })
}

/// # Safety
/// The interpreter's version is a known one.
unsafe fn version_in(dict: &Bound<'_, PyDict>) -> u64 {
    // SAFETY: a dict has more bytes than are read here.
    unsafe { (*dict.as_ptr().cast::<Dict>()).version }
}

/// Whether the version of a dict changes with it.
///
/// # Safety
/// The interpreter's version is a known one.
unsafe fn dicts_have_versions(py: Python<'_>) -> PyResult<bool> {
    let dict = PyDict::new(py);
    // SAFETY: as the caller says.
    let version = || unsafe { version_in(&dict) };
    let more = PyDict::new(py);
    more.set_item(5, 6)?;
    let changes: [&dyn Fn() -> PyResult<()>; 7] = [
        &|| dict.set_item(1, 2),
        &|| dict.set_item(1, 3),
        &|| dict.set_item(2, 3),
        &|| dict.del_item(1),
        &|| dict.update(more.as_mapping()),
        &|| dict.call_method0("popitem").map(drop),
        &|| dict.call_method0("clear").map(drop),
    ];
    let mut versions = vec![version()];
    for change in changes {
        let before = version();
        dict.get_item(1)?;
        dict.contains(2)?;
        let unchanged = version() == before;
        change()?;
        if !unchanged || versions.contains(&version()) {
            return Ok(false);
        }
        versions.push(version());
    }
    Ok(true)
}

/// The place of the value of a float.
///
/// # Safety
/// The layout is known, and the object is exactly a float.
#[inline(always)]
pub(crate) unsafe fn float_in(object: *mut ffi::PyObject) -> *mut f64 {
    // SAFETY: as the caller says.
    unsafe { &raw mut (*object.cast::<Float>()).value }
}

/// Makes a second reference to an object that has one.
///
/// # Safety
/// The layout is known, and the object has one reference, which the caller has.
#[inline(always)]
pub(crate) unsafe fn share(object: *mut ffi::PyObject) {
    // SAFETY: as the caller says; such an object counts its references in its first word, in all
    // known versions.
    unsafe { *object.cast::<isize>() = 2 };
}

/// Gives a reference away.
///
/// # Safety
/// The caller owns the reference.
#[inline(always)]
pub(crate) unsafe fn release(layout: Option<Layout>, object: *mut ffi::PyObject) {
    // SAFETY: as the caller says. The word of an immortal object is no such small number. CPython
    // frees its ints in the same way.
    unsafe {
        let count = object.cast::<isize>();
        if layout.is_none() || !(1..=i32::MAX as isize).contains(&*count) {
            ffi::Py_DECREF(object);
        } else if *count > 1 {
            *count -= 1;
        } else if ffi::PyLong_CheckExact(object) != 0 {
            ffi::PyObject_Free(object.cast());
        } else {
            ffi::Py_DECREF(object);
        }
    }
}

/// Whether an object is a cell, which is a variable that functions share.
pub(crate) fn is_cell(object: &Bound<'_, PyAny>) -> bool {
    object.get_type_ptr() == &raw mut PyCell_Type
}

/// Takes the content out of a cell. The caller owns the reference. Null if the cell is empty.
///
/// # Safety
/// The object is a cell.
#[inline(always)]
pub(crate) unsafe fn take(layout: Option<Layout>, cell: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as the caller says; the cell's reference becomes the caller's.
    unsafe {
        if layout.is_some() {
            return std::mem::replace(&mut (*cell.cast::<Cell>()).content, ptr::null_mut());
        }
        let content = PyCell_Get(cell);
        PyCell_Set(cell, ptr::null_mut());
        content
    }
}

/// Puts an object, or nothing (null), into a cell. The cell takes over the reference.
///
/// # Safety
/// The object is a cell.
#[inline(always)]
pub(crate) unsafe fn put(layout: Option<Layout>, cell: *mut ffi::PyObject, content: *mut ffi::PyObject) {
    // SAFETY: as the caller says; the old content is released after it was taken out of the cell.
    unsafe {
        if layout.is_some() {
            let before = std::mem::replace(&mut (*cell.cast::<Cell>()).content, content);
            if !before.is_null() {
                release(layout, before);
            }
        } else {
            PyCell_Set(cell, content);
            ffi::Py_XDECREF(content);
        }
    }
}

/// A new int with room for two digits, or null with an exception set.
pub(crate) fn new_integer() -> *mut ffi::PyObject {
    // SAFETY: the value has two digits.
    unsafe { ffi::PyLong_FromLongLong(1 << DIGIT) }
}

/// A new str for so many bytes of ASCII, or null with an exception set.
pub(crate) fn new_text(length: usize) -> *mut ffi::PyObject {
    // SAFETY: the call takes any length.
    unsafe { PyUnicode_New(length as isize, 127) }
}
