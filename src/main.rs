//! The program `ipoib`.

use clap::Parser;
use ipoib::cli::{Cli, Command};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = match log_filter(&cli.log) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("ipoib: --log {}: {error}", cli.log);
            return ExitCode::from(2);
        }
    };
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .init();
    let result = match cli.command {
        Command::Demo(args) => ipoib::demo::run(args),
        Command::Fabric(args) => ipoib::fabric_command::run(args),
        Command::Up(args) => ipoib::up::run(args),
        Command::Show(args) => ipoib::show::run(&args),
        Command::Set(args) => ipoib::set::run(&args),
        Command::Capture(args) => ipoib::capture::run(&args),
        Command::Decode(args) => ipoib::decode::run(&args),
        Command::Resolve(args) => ipoib::resolve::run(&args),
        Command::Ping(args) => ipoib::ping::run(args),
        Command::Fault(args) => ipoib::fault::run(&args),
        Command::Diag(args) => ipoib::opensm::diag(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("ipoib: {error:#}");
        ExitCode::FAILURE
    })
}

/// The library takes any word for the name of a module; here a word alone is a level.
fn log_filter(text: &str) -> Result<EnvFilter, String> {
    let mut words = text.split(',').filter(|word| !word.contains(['=', '[']));
    if let Some(word) = words.find(|word| word.trim().parse::<LevelFilter>().is_err()) {
        return Err(format!(
            "{word:?} is no level: error, warn, info, debug, trace or off"
        ));
    }
    EnvFilter::try_new(text).map_err(|error| error.to_string())
}
