//! A program: a list of instructions over columns of 2,048 rows.
//!
//! Each instruction writes one register, which no other instruction writes. So there are no jumps:
//! both branches of a condition are evaluated, and a select chooses. A register of booleans that
//! has 1 for the rows of a branch is the *mask* of its instructions. An instruction may compute
//! anything for other rows, but only rows of its mask leave the program.

use crate::format::Format;
use crate::strftime::Directive;
use crosslane::DataType;
use rustc_hash::FxHashMap;

/// The most rows that are evaluated at once.
pub const CHUNK: usize = 2048;

macro_rules! registers {
    ($($(#[$doc:meta])* $name:ident),+) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) struct $name(pub(crate) usize);)+
    };
}

registers! {
    /// A register of booleans: bytes that are 0 or 1.
    Bools,
    /// A register of 64-bit integers.
    Ints,
    /// A register of floats.
    Floats,
    /// A register of texts.
    Texts
}

/// The rows for which an instruction counts. None stands for all rows.
pub(crate) type Mask = Option<Bools>;

/// A register of any type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Register {
    Bool(Bools),
    Int(Ints),
    Float(Floats),
    Text(Texts),
    Time(Time, Ints),
}

/// What ints stand for that are no numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    /// Days since 1970-01-01, in the years 1 to 9999.
    Date,
    /// Microseconds since 1970-01-01 in the same years, without a zone.
    Datetime,
    /// Microseconds.
    Timedelta,
}

/// A field of a date, or of what is left of a datetime or timedelta after its whole days.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeField {
    /// The fields of a number of days.
    Year,
    Month,
    Day,
    /// From 0 for Monday.
    Weekday,
    /// The fields of a number of microseconds.
    Days,
    Hour,
    Minute,
    Second,
    Microsecond,
    SecondOfDay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IntOp {
    Add,
    Subtract,
    Multiply,
    FloorDivide,
    Modulo,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    Minimum,
    Maximum,
    Gcd,
    Lcm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloatOp {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
    Minimum,
    Maximum,
    Atan2,
    Fmod,
    CopySign,
}

/// Functions of one float that Python's `math` takes from the C library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloatFunction {
    Negate,
    Absolute,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Exp,
    Expm1,
    Log,
    Log2,
    Log10,
    Log1p,
    Asinh,
    Acosh,
    Atanh,
    Exp2,
    Erf,
    Erfc,
    Sqrt,
    Radians,
    Degrees,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloatTest {
    Nan,
    Infinite,
    Finite,
}

/// How a float becomes an int.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Truncate,
    Floor,
    Ceiling,
    HalfEven,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BoolOp {
    And,
    /// The first, and not the second.
    AndNot,
    Or,
    Xor,
}

/// Methods and functions of one text that give a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TextFunction {
    Lower,
    Upper,
    /// Removes these bytes, or white space, from the left and from the right.
    Strip {
        left: bool,
        right: bool,
        bytes: Option<Vec<u8>>,
    },
    Replace {
        old: Vec<u8>,
        new: Vec<u8>,
    },
    /// The element of `split(separator)` with this index.
    Element {
        separator: Vec<u8>,
        index: i64,
    },
    /// `separator.join(text.split())`.
    Words {
        separator: Vec<u8>,
    },
    /// The element of `split()` with this index.
    Word {
        index: i64,
    },
    Capitalize,
    Title,
    SwapCase,
    RemovePrefix(Vec<u8>),
    RemoveSuffix(Vec<u8>),
    /// `zfill` with this width.
    ZeroFill(usize),
    Format(Format),
}

/// Questions about two texts, the first of which is the object of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextTest {
    StartsWith,
    EndsWith,
    Contains,
}

/// A question about a text alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Characters {
    Digits,
    Letters,
    LettersOrDigits,
    Spaces,
    Upper,
    Lower,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextCount {
    /// The number of characters.
    Length,
    /// Where the second text is in the first, or -1.
    Find,
    /// How often the second text is in the first.
    Count,
}

/// The places of constants.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Places {
    Ints(FxHashMap<i64, u32>),
    Texts(FxHashMap<Vec<u8>, u32>),
}

/// What an instruction does. The last field of a variant that has one is its result.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    Int(IntOp, Ints, Ints, Ints),
    /// An int to the power of a constant.
    IntPower(Ints, u32, Ints),
    NegateInt(Ints, Ints),
    AbsoluteInt(Ints, Ints),
    InvertInt(Ints, Ints),
    /// The greatest int whose square is not greater.
    SquareRoot(Ints, Ints),
    Float(FloatOp, Floats, Floats, Floats),
    Function(FloatFunction, Floats, Floats),
    Test(FloatTest, Floats, Bools),
    /// A float that is rounded to so many digits.
    RoundDigits(Floats, i32, Floats),
    Round(Rounding, Floats, Ints),
    IntToFloat(Ints, Floats),
    BoolToInt(Bools, Ints),
    CompareInts(Comparison, Ints, Ints, Bools),
    CompareFloats(Comparison, Floats, Floats, Bools),
    CompareTexts(Comparison, Texts, Texts, Bools),
    IntTruth(Ints, Bools),
    FloatTruth(Floats, Bools),
    TextTruth(Texts, Bools),
    /// The place of an int, or -1.
    IntPlace(Ints, Places, Ints),
    TextPlace(Texts, Places, Ints),
    /// The constant at a place, or any if the place is -1. The second operand has the constants.
    PickBool(Ints, Bools, Bools),
    PickInt(Ints, Ints, Ints),
    PickFloat(Ints, Floats, Floats),
    PickText(Ints, Texts, Texts),
    TimeField(TimeField, Ints, Ints),
    /// The days of a year, month and day. Rows leave that are no date.
    MakeDate(Ints, Ints, Ints, Ints),
    Bool(BoolOp, Bools, Bools, Bools),
    Not(Bools, Bools),
    SelectBool(Bools, Bools, Bools, Bools),
    SelectInt(Bools, Ints, Ints, Ints),
    SelectFloat(Bools, Floats, Floats, Floats),
    SelectText(Bools, Texts, Texts, Texts),
    Text(TextFunction, Texts, Texts),
    /// The characters from one index to another.
    Slice(Texts, Option<Ints>, Option<Ints>, Texts),
    /// One character.
    Character(Texts, Ints, Texts),
    TextTest(TextTest, Texts, Texts, Bools),
    /// Whether the question is true for any of these constants.
    TextTestAny(TextTest, Texts, Vec<Vec<u8>>, Bools),
    Characters(Characters, Texts, Bools),
    Count(TextCount, Texts, Texts, Ints),
    Concatenate(Vec<Texts>, Texts),
    Repeat(Texts, Ints, Texts),
    IntToText(Ints, Texts),
    FloatToText(Floats, Texts),
    FormatInt(Format, Ints, Texts),
    FormatFloat(Format, Floats, Texts),
    /// The text of days, or of microseconds.
    TimeToText(Time, Vec<Directive>, Ints, Texts),
    TextToInt(Texts, Ints),
    /// Days or microseconds from a text that one of the formats fits.
    TextToTime(Time, Vec<Vec<Directive>>, Texts, Ints),
    /// Rows of the mask for which this is 1 leave the program.
    Leave(Bools),
    /// Rows of the mask whose int is not in this range leave the program.
    Within(Ints, i64, i64),
    /// Rows of the mask leave whose float has no 32 bits.
    Narrow(Floats),
}

impl Step {
    /// The text that it makes, if it makes one.
    pub(crate) fn text(&self) -> Option<Texts> {
        match self {
            Step::Text(_, _, out)
            | Step::Slice(_, _, _, out)
            | Step::Character(_, _, out)
            | Step::Concatenate(_, out)
            | Step::Repeat(_, _, out)
            | Step::IntToText(_, out)
            | Step::FloatToText(_, out)
            | Step::FormatInt(_, _, out)
            | Step::FormatFloat(_, _, out)
            | Step::TimeToText(_, _, _, out)
            | Step::PickText(_, _, out)
            | Step::SelectText(_, _, _, out) => Some(*out),
            _ => None,
        }
    }
}

/// A constant, and the register that has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Constant {
    Bool(bool, Bools),
    Int(i64, Ints),
    Float(f64, Floats),
    Text(Vec<u8>, Texts),
    /// Constants that are picked by their places.
    Bools(Vec<u8>, Bools),
    Ints(Vec<i64>, Ints),
    Floats(Vec<f64>, Floats),
    Texts(Vec<Vec<u8>>, Texts),
}

/// A parameter: the registers of its values and of its NULLs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Input {
    pub(crate) data_type: DataType,
    pub(crate) values: Register,
    /// 1 where the value is NULL. None if rows with a NULL are not evaluated.
    pub(crate) nulls: Option<Bools>,
}

/// The number of registers of each type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) bools: usize,
    pub(crate) ints: usize,
    pub(crate) floats: usize,
    pub(crate) texts: usize,
}

/// A function of rows as a program over columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    pub(crate) inputs: Vec<Input>,
    pub(crate) constants: Vec<Constant>,
    pub(crate) steps: Vec<(Step, Mask)>,
    pub(crate) counts: Counts,
    pub(crate) results: Results,
}

/// A column of results.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Output {
    /// None if all values are NULL.
    pub(crate) values: Option<Register>,
    /// 1 where the value is NULL.
    pub(crate) nulls: Option<Bools>,
    pub(crate) data_type: DataType,
}

/// What a program gives.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Results {
    One(Output),
    /// The fields of a STRUCT, and 1 where it is NULL itself.
    Fields(Vec<Output>, Option<Bools>),
}
