//! Signatures: `slug(title VARCHAR) -> VARCHAR`, in SQL's types, for all languages.

pub use crate::types::SignatureError;
use crate::types::{DataType, Field, Identifier};
use std::fmt;

/// A function's name, parameters and result, in SQL's types.
///
/// The last parameter may take any number of arguments of one type:
/// `f(first BIGINT, *rest VARCHAR) -> BIGINT`. A parameter of the type ANY takes an argument of any
/// type. [`Signature::for_arguments`] makes the signature for the arguments of one call.
///
/// ```
/// use crosslane::Signature;
/// let slug: Signature = "slug(title varchar, parts int[]) -> text".parse()?;
/// assert_eq!(slug.to_string(), "slug(title VARCHAR, parts INTEGER[]) -> VARCHAR");
/// # Ok::<(), crosslane::signature::SignatureError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Signature {
    /// The name of the function in SQL.
    pub name: String,
    /// The parameters in order. A parameter for any number of arguments has the type LIST, and its
    /// arguments are sent as a LIST.
    pub parameters: Vec<Field>,
    /// Whether the last parameter takes any number of arguments.
    pub variadic: bool,
    /// The type of the result. For a table, a STRUCT of its columns.
    pub returns: DataType,
    /// Whether the result is a table: `numbers(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)`. The type
    /// is ANY if the function chooses the columns.
    pub table: bool,
    /// Whether the only parameter is a table, whose rows come in batches:
    /// `clean(rows TABLE(a BIGINT)) -> TABLE(x BIGINT)`. The type of the parameter is a STRUCT of
    /// the columns, or ANY for any columns.
    pub stream: bool,
}

impl Signature {
    /// The parameters that take one argument each.
    pub fn fixed(&self) -> &[Field] {
        &self.parameters[..self.parameters.len() - usize::from(self.variadic)]
    }

    /// The type of the arguments after the fixed ones, if the signature allows any.
    pub fn rest(&self) -> Option<&DataType> {
        self.parameters.last().filter(|_| self.variadic)?.data_type.children().next()
    }

    /// Whether some parameter takes arguments of any type.
    pub fn takes_any(&self) -> bool {
        let any = |data_type: &DataType| *data_type == DataType::Any;
        self.fixed().iter().any(|field| any(&field.data_type)) || self.rest().is_some_and(any)
    }

    /// Whether the number and the types of the arguments cannot tell calls of the two signatures
    /// apart.
    pub fn takes_the_same(&self, other: &Self) -> bool {
        let mut pairs = self.parameters.iter().zip(&other.parameters);
        self.variadic == other.variadic
            && self.parameters.len() == other.parameters.len()
            && pairs.all(|(one, another)| one.data_type.is_alike(&another.data_type))
    }

    /// The signature with one parameter per argument, of the argument's type.
    ///
    /// # Errors
    /// The reason, if the signature takes no arguments of these types.
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

    /// The parameters, each with the type of one argument.
    fn arguments(&self) -> impl Iterator<Item = Field> {
        let rest = self.parameters.last().zip(self.rest());
        let rest =
            rest.map(|(last, data_type)| Field { name: last.name.clone(), data_type: data_type.clone() });
        self.fixed().iter().cloned().chain(rest)
    }

    /// The names of the parameters, and the types of one argument each, as text.
    pub fn pairs(&self) -> Vec<(String, String)> {
        let text = |data_type: &DataType| match self.stream {
            true => table_text(data_type),
            false => data_type.to_string(),
        };
        self.arguments().map(|field| (field.name, text(&field.data_type))).collect()
    }

    /// The parameters, as in the text of a signature.
    pub fn declared(&self) -> String {
        let rest = self.parameters.len() - usize::from(self.variadic);
        let star = |at: usize| if at == rest { "*" } else { "" };
        let texts = self.pairs().into_iter().enumerate();
        let texts = texts.map(|(at, (name, text))| format!("{}{} {text}", star(at), Identifier(&name)));
        texts.collect::<Vec<_>>().join(", ")
    }

    /// The result, as in the text of a signature.
    pub fn result(&self) -> String {
        if self.table { table_text(&self.returns) } else { self.returns.to_string() }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({}) -> {}", Identifier(&self.name), self.declared(), self.result())
    }
}

/// The types of a call's arguments as text: `(BIGINT, VARCHAR[])`.
pub fn types_text(types: &[DataType]) -> String {
    let texts: Vec<_> = types.iter().map(DataType::to_string).collect();
    format!("({})", texts.join(", "))
}

/// A table of these columns, as in the text of a signature.
fn table_text(columns: &DataType) -> String {
    match columns {
        DataType::Struct(columns) => {
            let columns: Vec<_> = columns.iter().map(Field::to_string).collect();
            format!("TABLE({})", columns.join(", "))
        }
        _ => "TABLE".to_owned(),
    }
}
