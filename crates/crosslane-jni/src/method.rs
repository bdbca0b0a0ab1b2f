//! How a native method of `dev.crosslane.spark.Native` is declared, and how its errors become
//! Java's exceptions.

use crosslane::Error;
use jni::Env;
use jni::errors::ErrorPolicy;
use jni::strings::JNIString;
use std::any::Any;

/// The class of all exceptions that are thrown.
const EXCEPTION: &str = "dev/crosslane/spark/CrosslaneException";

/// Declares native methods: a name, the name of the environment, the arguments, and a body that
/// returns a `Result`.
macro_rules! native_methods {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($env:pat $(, $argument:ident: $argument_type:ty)*) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$attribute])*
        #[unsafe(export_name = concat!("Java_dev_crosslane_spark_Native_", stringify!($name)))]
        extern "system" fn $name<'local>(
            mut env: EnvUnowned<'local>,
            _: JClass<'local>,
            $($argument: $argument_type,)*
        ) $(-> $result)? {
            env.with_env(|$env| -> Result<_, Failed> { $body }).resolve::<Throws>()
        }
    )*};
}
pub(crate) use native_methods;

/// Why a method failed.
#[derive(Debug)]
pub(crate) enum Failed {
    Crosslane(Error),
    Java(jni::errors::Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Crosslane(error)
    }
}

impl From<jni::errors::Error> for Failed {
    fn from(error: jni::errors::Error) -> Self {
        Failed::Java(error)
    }
}

/// Throws an exception of our class for each error and each panic. No panic crosses into Java.
pub(crate) struct Throws;

impl<T: Default> ErrorPolicy<T, Failed> for Throws {
    type Captures<'local: 'method, 'method> = ();

    fn on_error<'local: 'method, 'method>(
        env: &mut Env<'local>,
        (): &mut (),
        failed: Failed,
    ) -> jni::errors::Result<T> {
        match failed {
            Failed::Java(_) if env.exception_check() => {}
            Failed::Java(error) => throw(env, &error.to_string()),
            Failed::Crosslane(error) => throw(env, &error.to_string()),
        }
        Ok(T::default())
    }

    fn on_panic<'local: 'method, 'method>(
        env: &mut Env<'local>,
        (): &mut (),
        payload: Box<dyn Any + Send + 'static>,
    ) -> jni::errors::Result<T> {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no text");
        throw(env, &format!("a defect of crosslane's, please report it: {text}"));
        Ok(T::default())
    }
}

fn throw(env: &mut Env<'_>, message: &str) {
    // `throw_new` returns an error when it has thrown.
    let _ = env.throw_new(JNIString::from(EXCEPTION), JNIString::from(message));
}
