//! Functions, as made from the specifications of their library.

use crate::cost::{Cost, Costs};
use crate::error::Error;
use crate::function::memo::BESIDE_CACHE;
use crate::function::{EntryTypes, FunctionSpec, Kind, Memo, Rate, Repeats, Store};
use crate::lane::{Entry, ROUND_TRIP};
use crate::stats::FunctionStats;
use crate::types::signature::{Signature, types_text};
use crate::types::{DataType, Field};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A named, typed piece of guest code.
#[derive(Debug)]
pub struct Function {
    /// The index in its library.
    pub index: u32,
    /// Name and types.
    pub signature: Signature,
    /// Options and origin.
    pub spec: FunctionSpec,
    /// The time after which a call is ended.
    timeout: Option<Duration>,
    /// The types of its parameters as text, which its calls carry. Only for a function that
    /// [`Function::for_arguments`] made for some argument types.
    pub types: Option<Arc<str>>,
    /// Counters of its calls so far.
    pub stats: Arc<FunctionStats>,
    costs: Arc<Costs>,
    /// The results that it keeps.
    pub(crate) memo: Option<KeptResults>,
    pub(crate) repeats: Arc<Repeats>,
    /// How often it may be called.
    pub(crate) rate: Option<Arc<Rate>>,
}

impl Function {
    /// All functions of a library, from the specifications of its guest.
    ///
    /// # Errors
    /// As [`Function::each`]. Also [`Error::Load`] if two functions have the same name and cannot
    /// be overloads.
    pub fn all(specs: Vec<FunctionSpec>, library: &str) -> Result<Vec<Arc<Self>>, Error> {
        let mut names = Names::default();
        Self::made(specs, library, |function| names.add(function))
    }

    /// All functions of a library whose calls do not use names, so several functions may have the
    /// same name.
    ///
    /// # Errors
    /// [`Error::Load`], with the function's place in the file, if a specification has an error.
    pub fn each(specs: Vec<FunctionSpec>, library: &str) -> Result<Vec<Arc<Self>>, Error> {
        Self::made(specs, library, |function| Ok(Arc::new(function)))
    }

    fn made(
        specs: Vec<FunctionSpec>,
        library: &str,
        mut add: impl FnMut(Self) -> Result<Arc<Self>, Error>,
    ) -> Result<Vec<Arc<Self>>, Error> {
        let mut shared = Shared::default();
        let mut add = |function: Self| add(shared.join(function));
        let of = |(spec, index): (FunctionSpec, u32)| {
            let place = spec.place();
            Self::new(index, spec).and_then(&mut add).map_err(|error| {
                let class = match error {
                    Error::Signature(_) => "SignatureError",
                    _ => "DeclarationError",
                };
                Error::declared(library, class, &error, &place)
            })
        };
        specs.into_iter().zip(0..).map(of).collect()
    }

    /// A function from the specification of its guest.
    ///
    /// # Errors
    /// [`Error::Signature`] if the signature cannot be read, [`Error::Declaration`] if an option
    /// has a wrong value.
    pub fn new(index: u32, mut spec: FunctionSpec) -> Result<Self, Error> {
        let signature: Signature = spec.signature.parse()?;
        let wrong = |what: String| Error::Declaration(format!("function {}: {what}", signature.name));
        spec.check().map_err(wrong)?;
        let takes_any = signature.takes_any() && !signature.stream;
        if spec.kind != Kind::Scalar && (signature.variadic || takes_any) {
            let kind = spec.kind.name();
            return Err(wrong(format!(
                "only scalar functions take any number or type of arguments, and it is of the kind {kind}"
            )));
        }
        if signature.stream != (spec.kind == Kind::Stream) {
            return Err(wrong(if signature.stream {
                format!("only a stream function takes a TABLE, and it is of the kind {}", spec.kind.name())
            } else {
                "a stream function's signature begins with its input: (rows TABLE) or (rows TABLE(column TYPE, ...))".to_owned()
            }));
        }
        if signature.table != matches!(spec.kind, Kind::Table | Kind::Stream) {
            return Err(wrong(if signature.table {
                format!("only table functions return TABLE(...), and it is of the kind {}", spec.kind.name())
            } else {
                format!(
                    "the signature of a function of the kind {} ends with -> TABLE(column TYPE, ...)",
                    spec.kind.name()
                )
            }));
        }
        let most = if spec.kind == Kind::Table { signature.parameters.len() } else { 0 };
        if spec.hidden > most {
            return Err(wrong(format!("{} parameters are hidden, of {most} that can be", spec.hidden)));
        }
        spec.admits_null.resize(signature.parameters.len(), false);
        spec.named.resize(signature.parameters.len(), false);
        let timeout = spec.timeout.map(Duration::from_secs_f64);
        let (stats, costs, repeats) = Default::default();
        let ttl = spec.ttl.map(Duration::from_secs_f64);
        let bytes = spec.memoize.or(spec.cache.as_ref().map(|_| BESIDE_CACHE));
        // A client does not know how old a server's results are.
        let bytes = bytes.filter(|_| !spec.kept_by_server || ttl.is_none());
        let memo = bytes.map(|bytes| Arc::new(Memo::new(signature.returns.clone(), bytes, ttl)));
        let memo = memo.map(|memo| KeptResults::new(memo, types_of(&signature)));
        let rate = spec.rate.as_deref().map(Rate::parse).transpose().map_err(wrong)?;
        let rate = rate.map(|per_second| Arc::new(Rate::new(per_second)));
        Ok(Self { index, signature, spec, timeout, types: None, stats, costs, memo, repeats, rate })
    }

    /// The function for arguments of these types: it has one parameter per argument.
    ///
    /// # Errors
    /// [`Error::Engine`] if it takes no arguments of these types.
    pub fn for_arguments(&self, types: Vec<DataType>) -> Result<Self, Error> {
        let text = types_text(&types);
        let signature = self.signature.for_arguments(types).map_err(Error::Engine)?;
        let mut spec = self.spec.clone();
        let memo =
            self.memo.as_ref().map(|known| KeptResults::new(Arc::clone(&known.memo), types_of(&signature)));
        let rest = spec.admits_null.pop_if(|_| self.signature.variadic).unwrap_or_default();
        spec.admits_null.resize(signature.parameters.len(), rest);
        Ok(Self {
            index: self.index,
            signature,
            spec,
            timeout: self.timeout,
            types: Some(text.into()),
            stats: Arc::clone(&self.stats),
            costs: Arc::clone(&self.costs),
            memo,
            repeats: Arc::clone(&self.repeats),
            rate: self.rate.clone(),
        })
    }

    /// The name of the function in SQL.
    pub fn name(&self) -> &str {
        &self.signature.name
    }

    /// The parameters that SQL knows.
    pub fn parameters(&self) -> &[Field] {
        let all = &self.signature.parameters;
        &all[..all.len() - self.spec.hidden]
    }

    /// The columns that an exchange for this entry of the function carries.
    ///
    /// # Errors
    /// [`Error::Engine`] if functions of its kind have no such entry.
    pub fn entry(&self, entry: Entry) -> Result<EntryTypes<'_>, Error> {
        let kind = self.spec.kind;
        kind.entry(entry, &self.signature).ok_or_else(|| {
            Error::Engine(format!(
                "{} is of the kind {}, which has no entry {entry:?}",
                self.name(),
                kind.name()
            ))
        })
    }

    /// The measured cost of this entry.
    pub(crate) fn cost(&self, entry: Entry) -> &Cost {
        self.costs.of(entry)
    }

    /// Has its results kept in a store, too, if it keeps results and has no store yet. `open` gives
    /// the store, if there can be one.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn keep_in<E>(&self, open: impl FnOnce() -> Result<Option<Arc<dyn Store>>, E>) -> Result<(), E> {
        match &self.memo {
            Some(KeptResults { memo, .. }) if memo.store().is_none() => {
                open()?.into_iter().for_each(|store| memo.set_store(store));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What it has in common with the other functions of its declaration.
    pub fn declaration(&self) -> Declaration {
        let FunctionSpec {
            file, line, memoize, cache, ttl, rate, budget, workers, gpus, own_sandbox, ..
        } = &self.spec;
        let shared = (memoize, cache, ttl, rate, budget, workers, gpus, own_sandbox);
        let (name, file) = (self.name().to_owned(), file.clone());
        Declaration { name, file, line: *line, options: format!("{} {shared:?}", self.signature.returns) }
    }

    /// Whether only lanes of its own call the function.
    pub fn has_own_lanes(&self) -> bool {
        let FunctionSpec { workers, gpus, own_sandbox, .. } = &self.spec;
        workers.is_some() || gpus.is_some() || own_sandbox.is_some()
    }

    /// Whether the function gets NULLs for any parameter.
    pub fn admits_null(&self) -> bool {
        self.spec.admits_null.contains(&true)
    }

    /// Whether a caller should send a batch to lanes. That is so if several lanes would share the
    /// batch, or if its cost is still unknown.
    pub fn wants_lanes(&self, rows: usize, width: usize) -> bool {
        let concurrency = self.spec.concurrency.max(1) as usize;
        let advice = self.cost(Entry::Call).advise(rows, width, 0, concurrency, ROUND_TRIP);
        advice.lanes > 1 || advice.probe
    }

    /// Learns the cost of a batch that was sent to no lane, in nanoseconds.
    pub fn learn(&self, rows: usize, nanoseconds: u64) {
        self.cost(Entry::Call).learn(rows, nanoseconds);
    }

    /// The time without progress after which the engine ends a lane.
    pub fn patience(&self) -> Option<Duration> {
        let timeout = self.timeout?;
        if !self.spec.ends_late_calls {
            return Some(timeout);
        }
        // This guest ends late calls itself. The engine ends the lane only if the guest fails to do
        // so. So it allows for a set-up, all tries at a row, the pauses between them, and one
        // second more.
        let set_up = self.spec.set_up_timeout.map_or(Duration::ZERO, Duration::from_secs_f64);
        let pauses = (0..self.spec.retries.min(60)).map(super::backoff).sum::<Duration>();
        let tries = timeout.saturating_mul(self.spec.retries.saturating_add(1));
        Some(tries.saturating_add(set_up).saturating_add(pauses + Duration::from_secs(1)))
    }
}

/// The kept results of a function, for its parameters' types.
#[derive(Debug)]
pub(crate) struct KeptResults {
    pub(crate) memo: Arc<Memo>,
    /// The types as text.
    pub(crate) types: String,
    /// Their hash in the memo, with which keys begin there.
    pub(crate) hash: u64,
}

impl KeptResults {
    /// For arguments of these types.
    pub(crate) fn new(memo: Arc<Memo>, types: impl Iterator<Item = DataType>) -> Self {
        let types = types_text(&types.collect::<Vec<_>>());
        let hash = memo.hash_of(&types);
        Self { memo, types, hash }
    }
}

fn types_of(signature: &Signature) -> impl Iterator<Item = DataType> {
    signature.parameters.iter().map(|field| field.data_type.clone())
}

/// The functions of one declaration share what they keep, and how often they may be called. There is
/// one function for each number of arguments.
#[derive(Default)]
struct Shared(HashMap<Declaration, Kept>);

type Kept = (Option<Arc<Memo>>, Option<Arc<Rate>>);

/// What the functions of one declaration have in common. There is one function for each number of
/// arguments.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Declaration {
    name: String,
    file: String,
    line: u32,
    /// A program may declare several functions in one line. These differ in their results or options.
    options: String,
}

impl Shared {
    fn join(&mut self, mut function: Function) -> Function {
        let declaration = function.declaration();
        let Function { signature, memo, rate, .. } = &mut function;
        if memo.is_some() || rate.is_some() {
            let own = || (memo.take().map(|known| known.memo), rate.take());
            let shared = self.0.entry(declaration).or_insert_with(own);
            *memo = shared.0.clone().map(|memo| KeptResults::new(memo, types_of(signature)));
            rate.clone_from(&shared.1);
        }
        function
    }
}

/// The functions of a library, by name in lower case.
#[derive(Default)]
struct Names(HashMap<String, Vec<Arc<Function>>>);

impl Names {
    /// Adds a function. One declaration may give several functions: one for each number of
    /// arguments.
    ///
    /// # Errors
    /// [`Error::Declaration`] if another declaration has the same name and the two cannot be
    /// overloads.
    fn add(&mut self, function: Function) -> Result<Arc<Function>, Error> {
        let same_name = self.0.entry(function.name().to_lowercase()).or_default();
        for other in &*same_name {
            let place = |spec: &FunctionSpec| format!("line {} of {}", spec.line, spec.file);
            let taken = format!("function {}: the name is taken by {}", function.name(), place(&other.spec));
            if function.signature.takes_the_same(&other.signature) {
                return Err(Error::Declaration(format!(
                    "{taken}, and SQL cannot tell calls of the two apart: {} and {}; give one another name",
                    other.signature, function.signature
                )));
            }
            if (function.spec.line, &function.spec.file) == (other.spec.line, &other.spec.file) {
                continue;
            }
            if !function.spec.overload {
                return Err(Error::Declaration(format!(
                    "{taken}; give it another name, or the option overload to keep both"
                )));
            }
            if other.spec.kind != Kind::Scalar {
                return Err(Error::Declaration(format!(
                    "{taken}, which is of the kind {}; only scalar functions have overloads",
                    other.spec.kind.name()
                )));
            }
        }
        let function = Arc::new(function);
        same_name.push(Arc::clone(&function));
        Ok(function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::*;
    use serde_json::{Value, json};

    fn function(option: &str, value: Value) -> Result<Function, String> {
        let mut spec = json!({ "signature": "f(x BIGINT) -> BIGINT", "admits_null": [] });
        spec[option] = value;
        let spec: FunctionSpec = serde_json::from_value(spec).map_err(|error| error.to_string())?;
        Function::new(0, spec).map_err(|error| error.to_string())
    }

    #[test]
    fn options_that_cannot_be_are_errors() {
        for (option, values) in [
            ("timeout", vec![json!(1e20), json!(1e300), json!(0), json!(-1)]),
            ("memory_limit", vec![json!(0), json!(u64::MAX)]),
            ("concurrency", vec![json!(0), json!(u32::MAX)]),
            ("retries", vec![json!(u32::MAX)]),
        ] {
            for value in values {
                let error = function(option, value.clone()).unwrap_err();
                assert!(error.starts_with(&format!("function f: {option} is")), "{value}: {error}");
            }
        }
    }

    /// The error for functions of these signatures, one per line of a file. A `+` at the beginning
    /// marks an overload.
    fn wrong_among(signatures: &[&str]) -> Option<String> {
        let spec = |(signature, line): (&&str, u32)| FunctionSpec {
            kind: if signature.ends_with(')') { Kind::Table } else { Kind::Scalar },
            overload: signature.starts_with('+'),
            file: "f.py".into(),
            line,
            ..FunctionSpec::new(signature.trim_start_matches('+').into())
        };
        let error = Function::all(signatures.iter().zip(1..).map(spec).collect(), "f.py").err()?;
        let Error::Load { failure, .. } = error else { panic!("{error}") };
        assert_eq!(
            (failure.class, failure.traceback),
            ("DeclarationError".into(), format!("  at f.py:{}", signatures.len()))
        );
        Some(failure.message)
    }

    #[test]
    fn functions_that_calls_do_not_name_may_have_one_name() {
        let specs = || vec![FunctionSpec::new("f(x BIGINT) -> BIGINT".into()); 2];
        let functions = Function::each(specs(), "a program").unwrap();
        assert_eq!(functions.iter().map(|function| function.index).collect::<Vec<_>>(), [0, 1]);
        Function::all(specs(), "a program").unwrap_err();
    }

    #[test]
    fn functions_of_one_name_take_other_types_and_say_so() {
        for right in [
            &["f(x BIGINT) -> BIGINT", "+f(x VARCHAR) -> BIGINT", "+F(x BIGINT, *y BIGINT) -> BIGINT"][..],
            &[
                "+f(x DECIMAL(10,2)) -> BIGINT",
                "+f(x DECIMAL(18,3), y BIGINT) -> BIGINT",
                "+f(x ANY) -> BIGINT",
            ],
            &[
                "+f(x STRUCT(a INTEGER)) -> BIGINT",
                "+f(x STRUCT(b INTEGER)) -> BIGINT",
                "+f(x INT[2]) -> BIGINT",
            ],
            &["+f(x BIGINT) -> BIGINT", "+f(x BIGINT[]) -> BIGINT", "+f(*x BIGINT) -> BIGINT"],
        ] {
            assert_eq!(wrong_among(right), None);
        }
        for (wrong, what) in [
            (
                &["f(x BIGINT) -> BIGINT", "F(x VARCHAR) -> BIGINT"][..],
                "function F: the name is taken by line 1 of f.py; give it another name, or the option overload to keep both",
            ),
            (
                &["f() -> BIGINT", "+f(x INT) -> BIGINT", "+f(y INTEGER) -> DOUBLE"],
                "function f: the name is taken by line 2 of f.py, and SQL cannot tell calls of the two apart: \
                 f(x INTEGER) -> BIGINT and f(y INTEGER) -> DOUBLE; give one another name",
            ),
            (
                &["f(x STRUCT(a DECIMAL(10,2))[]) -> BIGINT", "+f(x STRUCT(A DECIMAL(18,3))[]) -> BIGINT"],
                "function f: the name is taken by line 1 of f.py, and SQL cannot tell calls of the two apart: \
                 f(x STRUCT(a DECIMAL(10,2))[]) -> BIGINT and f(x STRUCT(A DECIMAL(18,3))[]) -> BIGINT; give one another name",
            ),
            (
                &["f(x BIGINT) -> TABLE(y BIGINT)", "+f() -> BIGINT"],
                "function f: the name is taken by line 1 of f.py, which is of the kind table; only scalar functions have overloads",
            ),
            (
                &["+f(x BIGINT) -> TABLE(y BIGINT)"],
                "function f: only scalar functions have overloads, and it is of the kind table; give it another name",
            ),
        ] {
            assert_eq!(wrong_among(wrong).as_deref(), Some(what));
        }
    }

    #[test]
    fn a_declaration_gives_a_function_for_each_number_of_arguments() {
        let spec = |signature: &str| FunctionSpec::new(signature.into());
        let all =
            Function::all(vec![spec("f(x INT, y INT) -> INT"), spec("f(x INT) -> INT")], "f.py").unwrap();
        assert_eq!(all.iter().map(|function| function.index).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn parameters_of_the_engine_are_hidden() {
        let declared = |kind: &str, returns: &str, hidden: u32| {
            let signature = format!("f(x BIGINT, query BIGINT) -> {returns}");
            let spec = json!({ "signature": signature, "admits_null": [], "kind": kind, "hidden": hidden });
            Function::new(0, serde_json::from_value(spec).unwrap()).map_err(|error| error.to_string())
        };
        let function = declared("table", "TABLE(i BIGINT)", 1).unwrap();
        let names: Vec<_> = function.parameters().iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["x"]);
        let error = declared("table", "TABLE(i BIGINT)", 3).unwrap_err();
        assert_eq!(error, "function f: 3 parameters are hidden, of 2 that can be");
        assert!(
            declared("scalar", "BIGINT", 1)
                .unwrap_err()
                .ends_with("1 parameters are hidden, of 0 that can be")
        );
    }

    #[test]
    fn what_only_scalar_functions_can_is_an_error_of_others() {
        let declared = |kind: &str, parameters: &str, option: Value| {
            let returns = if kind == "table" { "TABLE" } else { "STRUCT" };
            let signature = format!("f({parameters}) -> {returns}(x BIGINT)");
            let mut spec = json!({ "signature": signature, "admits_null": [], "kind": kind });
            spec.as_object_mut().unwrap().extend(option.as_object().unwrap().clone());
            let spec: FunctionSpec = serde_json::from_value(spec).map_err(|error| error.to_string())?;
            Function::new(0, spec).map_err(|error| error.to_string())
        };
        for (parameters, option) in [
            ("x ANY", json!({})), //
            ("*x BIGINT", json!({})),
        ] {
            assert_eq!(declared("scalar", parameters, option.clone()).unwrap().spec.kind, Kind::Scalar);
            for kind in ["table", "aggregate"] {
                let error = declared(kind, parameters, option.clone()).unwrap_err();
                assert!(
                    error.starts_with("function f: only scalar functions ") && error.ends_with(kind),
                    "{error}"
                );
            }
        }
        assert_eq!(declared("aggregate", "", json!({})).unwrap().spec.kind, Kind::Aggregate);
        assert!(declared("window", "", json!({})).is_err());
        for option in
            [json!({ "partitions": true }), json!({ "cardinality": 7 }), json!({ "named": [false, true] })]
        {
            let spec = declared("table", "x INT, y INT", option.clone()).unwrap().spec;
            assert_eq!(spec.named.len(), 2);
            for kind in ["scalar", "aggregate"] {
                let error = declared(kind, "x INT, y INT", option.clone()).unwrap_err();
                assert!(
                    error.starts_with("function f: only table functions ") && error.ends_with(kind),
                    "{error}"
                );
            }
        }
        for (kind, result) in
            [("table", "STRUCT(x INT)"), ("scalar", "TABLE(x INT)"), ("aggregate", "TABLE(x INT)")]
        {
            let spec = json!({ "signature": format!("f() -> {result}"), "admits_null": [], "kind": kind });
            let error = Function::new(0, serde_json::from_value(spec).unwrap()).unwrap_err().to_string();
            assert!(error.contains("TABLE("), "{error}");
        }
    }

    #[test]
    fn a_stream_function_has_the_options_that_make_sense_for_it() {
        let declared = |option: Value| {
            let signature = "f(rows TABLE(x INT)) -> TABLE(y INT)";
            let mut spec = json!({ "signature": signature, "admits_null": [], "kind": "stream" });
            spec.as_object_mut().unwrap().extend(option.as_object().unwrap().clone());
            let spec: FunctionSpec = serde_json::from_value(spec).unwrap();
            Function::new(0, spec).map_err(|error| error.to_string())
        };
        let function = declared(json!({ "retries": 2, "on_error": "null", "set_up": true })).unwrap();
        let carried = function.entry(Entry::Map).unwrap();
        assert_eq!(carried.takes().map(DataType::to_string).collect::<Vec<_>>(), ["STRUCT(x INTEGER)"]);
        assert_eq!(carried.returns.unwrap().to_string(), "STRUCT(y INTEGER)");
        for option in [json!({ "partitions": true }), json!({ "cardinality": 7 }), json!({ "named": [true] })]
        {
            let error = declared(option).unwrap_err();
            assert!(error.ends_with("it is of the kind stream"), "{error}");
        }
        assert!(
            declared(json!({ "kind": "table" }))
                .unwrap_err()
                .contains("only a stream function takes a TABLE")
        );
    }

    #[test]
    fn a_function_of_any_type_is_one_for_the_arguments_of_a_call() {
        let spec = json!({ "signature": "f(a ANY, b BIGINT, *rest ANY) -> BIGINT", "admits_null": [true, false, true] });
        let function = Function::new(3, serde_json::from_value(spec).unwrap()).unwrap();
        let types = |text: &str| text.split(' ').map(|one| one.parse().unwrap()).collect::<Vec<DataType>>();
        let concrete = function.for_arguments(types("DATE BIGINT VARCHAR[] BLOB")).unwrap();
        assert_eq!(concrete.types.as_deref(), Some("(DATE, BIGINT, VARCHAR[], BLOB)"));
        assert_eq!(concrete.spec.admits_null, [true, false, true, true]);
        assert_eq!((concrete.index, concrete.signature.variadic), (3, false));
        concrete.stats.here().calls.add(1);
        assert_eq!(function.stats.totals().calls.get(), 1);
        assert_eq!(function.for_arguments(types("DATE BIGINT")).unwrap().spec.admits_null, [true, false]);
        let error = function.for_arguments(types("DATE VARCHAR")).unwrap_err().to_string();
        assert!(
            error.ends_with("f(a ANY, b BIGINT, *rest ANY) -> BIGINT cannot be called with (DATE, VARCHAR)")
        );
    }

    #[test]
    fn the_largest_options_can_be_used() {
        let function = function("timeout", json!(LONGEST_TIMEOUT)).unwrap();
        assert_eq!(function.patience(), Some(Duration::from_secs(1_000_000_000)));
        let mut spec = function.spec.clone();
        (spec.ends_late_calls, spec.retries) = (true, MOST_RETRIES);
        spec.set_up_timeout = Some(LONGEST_TIMEOUT);
        assert!(Function::new(0, spec).unwrap().patience() > Some(Duration::from_secs(1_000_000_000_000)));
    }

    #[test]
    fn a_guest_that_ends_late_calls_has_time_for_a_set_up_within_one() {
        let mut spec = function("timeout", json!(1.0)).unwrap().spec.clone();
        let patience = |spec: &FunctionSpec| Function::new(0, spec.clone()).unwrap().patience().unwrap();
        spec.set_up_timeout = Some(20.0);
        assert_eq!(patience(&spec), Duration::from_secs(1), "others are set up apart from calls");
        spec.ends_late_calls = true;
        assert_eq!(patience(&spec), Duration::from_secs(22));
        spec.set_up_timeout = Some(-1.0);
        assert!(Function::new(0, spec).unwrap_err().to_string().contains("set_up_timeout"));
    }
}
