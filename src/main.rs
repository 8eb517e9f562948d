//! The program `ipoib`.

use clap::Parser;
use ipoib::cli::{Cli, Command};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = match EnvFilter::try_new(&cli.log) {
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
        Command::Capture(args) => ipoib::capture::run(&args),
        Command::Decode(args) => ipoib::decode::run(&args),
        Command::Resolve(args) => ipoib::resolve::run(&args),
        Command::Ping(args) => ipoib::ping::run(args),
        Command::Diag(args) => ipoib::opensm::diag(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("ipoib: {error:#}");
        ExitCode::FAILURE
    })
}
