//! `ipoib capture`: what crosses the link of a running interface or fabric, into a file.

use crate::cli;
use crate::control::{self, Captured, Request};
use crate::signals::Signals;
use anyhow::{Context, bail};
use fabric::link::pcap::{PcapReader, PcapWriter};
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::process::ExitCode;

/// Runs `ipoib capture` until the count, a signal, or the end of what it captures from.
///
/// # Errors
/// There is nothing to capture from; the file cannot be written.
pub fn run(args: &cli::Capture) -> anyhow::Result<ExitCode> {
    let to_stdout = args.file == Path::new("-");
    if to_stdout && io::stdout().is_terminal() {
        bail!(
            "a capture is no text for a terminal; give a file, or pipe it: ipoib capture - | tshark -r -"
        );
    }
    let instance = control::find(&args.target, None)?;
    let request = Request::Capture { count: args.count };
    let mut from = control::open(&instance, &request)?.stream;
    // Hours may pass without a frame.
    from.get_ref().set_read_timeout(None)?;
    let signals = Signals::install().context("cannot handle signals")?;
    let stream = from.get_ref().try_clone()?;
    std::thread::Builder::new()
        .name("ipoib-stop".into())
        .spawn(move || {
            // The first ends the capture in order; the second does not wait for the other side.
            for how in [Shutdown::Write, Shutdown::Both] {
                signals.wait();
                // An error means that it has ended already.
                let _ = stream.shutdown(how);
            }
        })?;
    let (mut to, name): (Box<dyn Write>, _) = if to_stdout {
        (Box::new(io::stdout().lock()), "standard output".into())
    } else {
        let name = args.file.display().to_string();
        (
            Box::new(File::create(&args.file).with_context(|| format!("cannot write {name}"))?),
            name,
        )
    };
    let (frames, written) = copy(&mut from, &mut to);
    // The other side must see the end before it is asked what was lost.
    drop(from);
    let lost = control::ask(&instance, &Request::Captured)
        .and_then(|v| Ok(serde_json::from_value::<Captured>(v)?));
    match lost {
        Ok(Captured { dropped, .. }) => eprintln!("frames captured: {frames}, dropped: {dropped}"),
        Err(_) => eprintln!("frames captured: {frames}; {} has ended", instance.name),
    }
    match written {
        // Whoever read has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.with_context(|| format!("cannot write {name}"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies whole frames until `from` ends; returns how many, and why `to` took no more. Each frame can be read as soon as it is written.
fn copy(from: &mut impl Read, to: &mut impl Write) -> (u64, io::Result<()>) {
    let mut frames = 0;
    let write = || {
        let mut to = PcapWriter::new(BufWriter::new(to))?;
        to.flush()?;
        // An error of reading is the end of the other side, perhaps in the middle of a frame.
        for frame in PcapReader::new(from)
            .into_iter()
            .flatten()
            .map_while(Result::ok)
        {
            to.write(frame.time, &frame.bytes)?;
            to.flush()?;
            frames += 1;
        }
        Ok(())
    };
    let result = write();
    (frames, result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn stream() -> Vec<u8> {
        let mut stream = Vec::new();
        let mut writer = PcapWriter::new(&mut stream).expect("head");
        for n in 0..3 {
            writer
                .write(
                    UNIX_EPOCH + Duration::from_nanos(1_000_000_007 * n),
                    &[n as u8; 40],
                )
                .expect("frame");
        }
        stream
    }

    #[test]
    fn the_file_is_what_came() {
        let stream = stream();
        let mut file = Vec::new();
        let (frames, result) = copy(&mut &stream[..], &mut file);
        assert!(result.is_ok());
        assert_eq!((frames, &file), (3, &stream));
    }

    #[test]
    fn a_stream_that_breaks_off_leaves_whole_frames() {
        let stream = stream();
        let record = (stream.len() - 24) / 3;
        for cut in 0..stream.len() {
            let mut file = Vec::new();
            let (frames, result) = copy(&mut &stream[..cut], &mut file);
            assert!(result.is_ok());
            assert_eq!(frames as usize, cut.saturating_sub(24) / record, "{cut}");
            assert_eq!(file, stream[..24 + frames as usize * record], "{cut}");
        }
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let stream = stream();
        let mut small = [0; 100];
        let (frames, result) = copy(&mut &stream[..], &mut &mut small[..]);
        assert_eq!(
            (frames, result.map_err(|e| e.kind())),
            (1, Err(ErrorKind::WriteZero))
        );
        let Ok(mut full) = File::create("/dev/full") else {
            return;
        };
        let (frames, result) = copy(&mut &stream[..], &mut full);
        assert_eq!(
            (frames, result.map_err(|e| e.kind())),
            (0, Err(ErrorKind::StorageFull))
        );
    }
}
