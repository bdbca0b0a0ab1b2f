//! The grammar of signatures: `slug(title VARCHAR) -> VARCHAR`, in SQL's types, for all languages.

pub use crate::types::SignatureError;
use crate::types::{DataType, Field, Identifier};
use std::fmt;

/// A function's name, parameters and result in SQL's types.
///
/// The last parameter may stand for any number of arguments of one type: `f(first BIGINT, *rest VARCHAR) -> BIGINT`.
/// A parameter of the type ANY takes an argument of any type; [`Signature::for_arguments`] is what such a signature is for
/// the arguments of a call.
///
/// ```
/// use crosslane::Signature;
/// let slug: Signature = "slug(title varchar, parts int[]) -> text".parse()?;
/// assert_eq!(slug.to_string(), "slug(title VARCHAR, parts INTEGER[]) -> VARCHAR");
/// # Ok::<(), crosslane::signature::SignatureError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Signature {
    /// The name, as SQL calls it.
    pub name: String,
    /// The parameters in order. That of any number of arguments has the type of a LIST of them, as which they travel.
    pub parameters: Vec<Field>,
    /// Whether the last parameter stands for any number of arguments.
    pub variadic: bool,
    /// The type of the result. Of a table, a STRUCT of its columns.
    pub returns: DataType,
    /// Whether the result is a table: `numbers(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)`. One whose columns its function
    /// decides has the type ANY.
    pub table: bool,
    /// Whether the only parameter is a table, which comes in batches: `clean(rows TABLE(a BIGINT)) -> TABLE(x BIGINT)`. Its
    /// type is a STRUCT of the columns, or ANY for any columns.
    pub stream: bool,
}

impl Signature {
    /// The parameters that stand for one argument each.
    pub fn fixed(&self) -> &[Field] {
        &self.parameters[..self.parameters.len() - usize::from(self.variadic)]
    }

    /// The type of the arguments behind the fixed ones, if there may be any.
    pub fn rest(&self) -> Option<&DataType> {
        self.parameters.last().filter(|_| self.variadic)?.data_type.children().next()
    }

    /// Whether a parameter takes arguments of any type.
    pub fn takes_any(&self) -> bool {
        let any = |data_type: &DataType| *data_type == DataType::Any;
        self.fixed().iter().any(|field| any(&field.data_type)) || self.rest().is_some_and(any)
    }

    /// Whether a call cannot tell it from another of its name, by the number and the types of the arguments.
    pub fn takes_the_same(&self, other: &Self) -> bool {
        let mut pairs = self.parameters.iter().zip(&other.parameters);
        self.variadic == other.variadic
            && self.parameters.len() == other.parameters.len()
            && pairs.all(|(one, another)| one.data_type.is_alike(&another.data_type))
    }

    /// The signature with a parameter for each argument, of the types that these arguments have.
    ///
    /// # Errors
    /// What is wrong if it takes no arguments of these types.
    pub fn for_arguments(&self, types: Vec<DataType>) -> Result<Self, String> {
        let fixed = self.fixed().len();
        let count = types.len();
        let names = self.parameters.iter().map(|field| field.name.clone()).take(fixed);
        let rest = self.parameters.last().filter(|_| self.variadic).map(|last| last.name.as_str());
        let names = names.chain((0..).map_while(|at| rest.map(|name| format!("{name}[{at}]"))));
        let declared = self.fixed().iter().map(|field| &field.data_type);
        let declared = declared.chain(self.rest().into_iter().cycle());
        let fits =
            |(declared, given): (&DataType, &DataType)| *declared == DataType::Any || declared == given;
        let all_fit = declared.zip(&types).all(fits) && !types.contains(&DataType::Any);
        if count < fixed || count > fixed && !self.variadic || !all_fit {
            return Err(format!("{self} cannot be called with {}", types_text(&types)));
        }
        let parameters = names.zip(types).map(|(name, data_type)| Field { name, data_type }).collect();
        let (name, returns) = (self.name.clone(), self.returns.clone());
        Ok(Self { name, parameters, variadic: false, returns, table: self.table, stream: self.stream })
    }

    /// The parameters with the types of an argument each.
    fn arguments(&self) -> impl Iterator<Item = Field> {
        let rest = self.parameters.last().zip(self.rest());
        let rest =
            rest.map(|(last, data_type)| Field { name: last.name.clone(), data_type: data_type.clone() });
        self.fixed().iter().cloned().chain(rest)
    }

    /// The names of the parameters, and the types of an argument each, as text.
    pub fn pairs(&self) -> Vec<(String, String)> {
        let text = |data_type: &DataType| match self.stream {
            true => table_text(data_type),
            false => data_type.to_string(),
        };
        self.arguments().map(|field| (field.name, text(&field.data_type))).collect()
    }

    /// The parameters as a signature has them.
    pub fn declared(&self) -> String {
        let rest = self.parameters.len() - usize::from(self.variadic);
        let star = |at: usize| if at == rest { "*" } else { "" };
        let texts = self.pairs().into_iter().enumerate();
        let texts = texts.map(|(at, (name, text))| format!("{}{} {text}", star(at), Identifier(&name)));
        texts.collect::<Vec<_>>().join(", ")
    }

    /// The result as a signature has it.
    pub fn result(&self) -> String {
        if self.table { table_text(&self.returns) } else { self.returns.to_string() }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({}) -> {}", self.name, self.declared(), self.result())
    }
}

/// The types of a call's arguments as text: `(BIGINT, VARCHAR[])`.
pub fn types_text(types: &[DataType]) -> String {
    let texts: Vec<_> = types.iter().map(DataType::to_string).collect();
    format!("({})", texts.join(", "))
}

/// A table of these columns as a signature has it.
fn table_text(columns: &DataType) -> String {
    match columns {
        DataType::Struct(columns) => {
            let columns: Vec<_> = columns.iter().map(Field::to_string).collect();
            format!("TABLE({})", columns.join(", "))
        }
        _ => "TABLE".to_owned(),
    }
}
