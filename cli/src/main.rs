//! `headwater`: everything that a person types to use, look at, try and measure a cluster.

mod exit;
mod failure;
mod output;
mod units;
mod consistency;
mod cluster;
mod data;
mod head;
mod scan;
mod shards;
mod cas;
mod append;
mod truncate;
mod watch;
mod logs;
mod import;
mod export;
mod status;
mod counters;
mod load;
mod demo;
mod bench;
mod wal;
mod doctor;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::cluster::ClusterArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// Uses, looks at, tries and measures a Headwater cluster.
#[derive(Parser, Debug)]
#[command(name = "headwater", version, after_help = Exit::HELP)]
struct Cli {
    /// Answer in JSON: one document a line
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Show a shard's newest entry
    Head(head::HeadArgs),
    /// Show entries of a shard
    Scan(scan::ScanArgs),
    /// Write an entry if the shard's head is the expected one
    Cas(cas::CasArgs),
    /// Write an entry after whatever the shard's head is
    Append(append::AppendArgs),
    /// Remove a shard's oldest entries
    Truncate(truncate::TruncateArgs),
    /// List shards
    Shards(shards::ShardsArgs),
    /// Show a shard's entries as each becomes visible
    Watch(watch::WatchArgs),
    /// Import a folder of logs, as table formats keep them
    Import(import::ImportArgs),
    /// Export shards into a folder that can be imported
    Export(export::ExportArgs),
    /// Show every node: its role, positions, lag and reads
    Status(status::StatusArgs),
    /// Start a cluster of three here, load logs, write and read, and verify while it runs
    Demo(demo::DemoArgs),
    /// Measure a running cluster
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Verify or show a log on disk
    #[command(subcommand)]
    Wal(wal::WalCommand),
    /// Say what this machine offers, and whether the nodes can be reached
    Doctor(doctor::DoctorArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let out = Output::new(cli.json);
    let ended = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime.block_on(dispatch(out, &cli.cluster, cli.command)),
        Err(e) => Err(Failure::Failed(format!("cannot start the runtime: {e}"))),
    };
    match ended {
        Ok(exit) => exit.into(),
        // Whoever read from us has enough: `headwater scan … | head` is no error.
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => Exit::Done.into(),
        Err(failure) => {
            out.failure(&failure);
            failure.exit().into()
        }
    }
}

async fn dispatch(out: Output, cluster: &ClusterArgs, command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Head(args) => head::run(out, cluster, args).await,
        Command::Scan(args) => scan::run(out, cluster, args).await,
        Command::Cas(args) => cas::run(out, cluster, args).await,
        Command::Append(args) => append::run(out, cluster, args).await,
        Command::Truncate(args) => truncate::run(out, cluster, args).await,
        Command::Shards(args) => shards::run(out, cluster, args).await,
        Command::Watch(args) => watch::run(out, cluster, args).await,
        Command::Import(args) => import::run(out, cluster, args).await,
        Command::Export(args) => export::run(out, cluster, args).await,
        Command::Status(args) => status::run(out, cluster, args).await,
        Command::Demo(args) => demo::run(out, args).await,
        Command::Bench(command) => bench::run(out, cluster, command).await,
        Command::Wal(command) => wal::run(out, command),
        Command::Doctor(args) => doctor::run(out, cluster, args).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_lists_every_exit_code() {
        let help = Cli::command().render_help().to_string();
        for code in [
            "0  done",
            "1  not done",
            "2  the",
            "3  mismatch",
            "4  outcome unknown",
            "5  nothing",
            "6  damaged",
            "130",
        ] {
            assert!(help.contains(code), "{code}");
        }
    }

    #[test]
    fn flags_of_the_cluster_may_stand_anywhere() {
        for line in ["--nodes a:1,b:2 --json head s", "head s --nodes a:1,b:2 --json"] {
            let cli = Cli::try_parse_from(["headwater"].into_iter().chain(line.split(' '))).unwrap();
            assert!(cli.json);
            assert_eq!(cli.cluster.nodes().unwrap(), ["a:1", "b:2"]);
        }
    }

    #[test]
    fn data_comes_from_one_place() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(drop);
        parse("headwater append s text").unwrap();
        parse("headwater append s --file f").unwrap();
        parse("headwater cas s --expected none -").unwrap();
        for wrong in [
            "headwater append s",
            "headwater append s text --file f",
            "headwater cas s text",
            "headwater head s --raw --json",
        ] {
            parse(wrong).unwrap_err();
        }
    }
}
