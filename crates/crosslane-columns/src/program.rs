//! A program: a list of instructions over columns of 2,048 rows.
//!
//! Each instruction writes one register, which no other instruction writes. So there are no jumps:
//! both branches of a condition are evaluated, and a select chooses. A register of booleans that
//! has 1 for the rows of a branch is the *mask* of its instructions. An instruction may compute
//! anything for other rows, but only rows of its mask leave the program.

use crosslane::DataType;

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

/// A set of constants, in order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Constants {
    Ints(Vec<i64>),
    Texts(Vec<Vec<u8>>),
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
    IntIn(Ints, Constants, Bools),
    TextIn(Texts, Constants, Bools),
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
    Characters(Characters, Texts, Bools),
    Count(TextCount, Texts, Texts, Ints),
    Concatenate(Vec<Texts>, Texts),
    Repeat(Texts, Ints, Texts),
    IntToText(Ints, Texts),
    TextToInt(Texts, Ints),
    /// Rows of the mask for which this is 1 leave the program.
    Leave(Bools),
    /// Rows of the mask whose int is not in this range leave the program.
    Within(Ints, i64, i64),
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
    /// The results. None if all are NULL.
    pub(crate) result: Option<Register>,
    /// 1 where the result is NULL.
    pub(crate) nulls: Option<Bools>,
    /// The type of the results.
    pub(crate) returns: DataType,
}
