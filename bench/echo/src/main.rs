//! `crosslane-bench-echo raw|tokio|tokio-spawn`: one of the servers.
//!
//! `crosslane-bench-echo micro`: how long single steps take, in lines of JSON.
//!
//! `crosslane-bench-echo load [OPTION]... -- SERVER [ARGUMENT]...`: starts a server, measures it,
//! and prints a line of JSON.

use anyhow::{Result, bail};
use crosslane_bench_echo::load::{self, Load, Work};
use crosslane_bench_echo::micro;
use crosslane_bench_echo::process::Server;
use crosslane_bench_echo::raw;
use crosslane_bench_echo::tasks::{self, Handler};
use crosslane_load::{Arrivals, Mix};
use lexopt::prelude::*;
use std::ffi::OsString;
use std::time::Duration;

const USAGE: &str = "usage: crosslane-bench-echo raw|tokio|tokio-spawn|micro
       crosslane-bench-echo load [OPTION]... -- SERVER [ARGUMENT]...
  --rate N             open loop: requests per second (10000)
  --arrivals NAME      open loop: uniform or poisson (uniform)
  --outstanding N      closed loop: requests on their way on each connection
  --connections N      (4)
  --seconds S          the measured time (5)
  --warm-up S          the time before it (1)
  --patience S         how long the last answers are waited for (5)
  --heavy SHARE        the share of requests that keep the server busy (0)
  --spin MICROSECONDS  for how long (2000)
  --seed N             of the plan (1)";

fn main() -> Result<()> {
    let mut parser = lexopt::Parser::from_env();
    let command = match parser.next()? {
        Some(Value(command)) => command.string()?,
        Some(Short('h') | Long("help")) => {
            println!("{USAGE}");
            return Ok(());
        }
        _ => bail!("{USAGE}"),
    };
    let serve = match command.as_str() {
        "raw" => raw::serve,
        "tokio" => || tasks::serve(Handler::Connection),
        "tokio-spawn" => || tasks::serve(Handler::Task),
        "micro" => steps,
        "load" => return measure(parser),
        _ => bail!("no command is named {command:?}\n{USAGE}"),
    };
    match parser.next()? {
        Some(argument) => Err(argument.unexpected().into()),
        None => serve(),
    }
}

fn measure(mut parser: lexopt::Parser) -> Result<()> {
    let (mut rate, mut arrivals, mut outstanding) = (10_000, Arrivals::Uniform, None);
    let (mut connections, mut spin) = (4, 2000);
    let mut load = Load {
        work: Work::Closed { outstanding: 1 },
        warm_up: Duration::from_secs(1),
        time: Duration::from_secs(5),
        patience: Duration::from_secs(5),
        mix: Mix::LIGHT,
        seed: 1,
    };
    let mut server: Vec<OsString> = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("rate") => rate = parser.value()?.parse()?,
            Long("arrivals") => {
                arrivals = match parser.value()?.string()?.as_str() {
                    "uniform" => Arrivals::Uniform,
                    "poisson" => Arrivals::Poisson,
                    other => bail!("--arrivals is uniform or poisson, not {other:?}"),
                }
            }
            Long("outstanding") => outstanding = Some(parser.value()?.parse()?),
            Long("connections") => connections = parser.value()?.parse()?,
            Long("seconds") => load.time = seconds(&mut parser)?,
            Long("warm-up") => load.warm_up = seconds(&mut parser)?,
            Long("patience") => load.patience = seconds(&mut parser)?,
            Long("heavy") => load.mix.share = parser.value()?.parse()?,
            Long("spin") => spin = parser.value()?.parse()?,
            Long("seed") => load.seed = parser.value()?.parse()?,
            Value(program) => {
                server.push(program);
                server.extend(parser.raw_args()?);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    load.work = outstanding.map_or(Work::Open { arrivals, rate }, |outstanding| Work::Closed { outstanding });
    load.mix.heavy = (spin, spin);
    let server = Server::start(&server)?;
    println!("{}", load::run(server.address, server.id(), connections, &load)?.report);
    server.stop()
}

fn seconds(parser: &mut lexopt::Parser) -> Result<Duration> {
    let seconds = parser.value()?.parse_with(|text| text.parse().map(Duration::try_from_secs_f64))?;
    Ok(seconds?)
}

fn steps() -> Result<()> {
    for step in micro::measure() {
        let nanos = u64::try_from(step.time.as_nanos())?;
        println!("{}", serde_json::json!({"work": step.work, "who": step.who, "ns": nanos}));
    }
    Ok(())
}
