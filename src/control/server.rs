//! The side of the running program.

use super::connect::listens;
use super::{Captured, Request, Response};
use crate::cli::{FaultWhat, SetWhat, ShowWhat};
use crate::opensm::Umad;
use crossbeam_channel::RecvTimeoutError;
use fabric::link::capture::Tap;
use fabric::link::pcap::PcapWriter;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, chmod};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest request, bytes.
const MAX_REQUEST: usize = 64 << 10;
/// Clients served at a time; a further one is told so.
const MAX_CLIENTS: usize = 16;
/// How long a client may take to send its request, or to take a piece of the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Frames that wait for a slow client.
const CAPTURE_QUEUE: usize = 8192;
/// How soon the end of an idle capture's client is noticed.
const CAPTURE_TICK: Duration = Duration::from_millis(100);

/// Answers for the running program. Called on threads of the server, several at a time.
pub trait Handler: Send + Sync {
    /// A topic of `ipoib show`.
    ///
    /// # Errors
    /// In words: there is no such topic here, or the program is about to end.
    fn show(&self, what: ShowWhat) -> Result<Value, String>;
    /// Where an IP address leads.
    ///
    /// # Errors
    /// In words: why it cannot be resolved.
    fn resolve(&self, ip: IpAddr) -> Result<Value, String>;
    /// How programs on libumad2sim reach this fabric.
    ///
    /// # Errors
    /// In words: it is none.
    fn umad(&self) -> Result<Umad, String> {
        Err("this is an interface; the diagnostics run on a fabric".into())
    }
    /// Breaks something, mends it, or tells what is broken.
    ///
    /// # Errors
    /// In words: why not.
    fn fault(&self, _what: FaultWhat) -> Result<Value, String> {
        Err("this is an interface; faults are those of a fabric".into())
    }
    /// Changes a setting.
    ///
    /// # Errors
    /// In words: why not.
    fn set(&self, _what: SetWhat) -> Result<Value, String> {
        Err("this is a fabric; settings are those of an interface".into())
    }
    /// Where packets can be captured, if they can.
    fn tap(&self) -> Option<Arc<Tap>>;
}

/// A control socket that is served. Dropping it removes the socket, closes all connections and ends all threads.
pub struct Server {
    shared: Arc<Shared>,
    path: PathBuf,
    inode: (u64, u64),
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    listener: UnixListener,
    handler: Arc<dyn Handler>,
    stopping: AtomicBool,
    /// Of clients being served, so that they can be cut off.
    clients: Mutex<HashMap<u64, UnixStream>>,
    captures: Captures,
}

/// Captures: one at a time.
#[derive(Default)]
struct Captures {
    running: AtomicBool,
    last: Mutex<Captured>,
}

impl Server {
    /// Makes the socket, replacing that of a program that has died, and serves it.
    ///
    /// # Errors
    /// The socket is that of a running program (`AddrInUse`), something else has its name, or it cannot be made.
    pub fn start(path: &Path, handler: Arc<dyn Handler>) -> io::Result<Server> {
        let listener = listen(path).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => error,
            kind => io::Error::new(kind, format!("control socket {}: {error}", path.display())),
        })?;
        let metadata = std::fs::symlink_metadata(path)?;
        let shared = Arc::new(Shared {
            listener,
            handler,
            stopping: AtomicBool::new(false),
            clients: Mutex::default(),
            captures: Captures::default(),
        });
        let mut server = Server {
            shared: shared.clone(),
            path: path.to_owned(),
            inode: (metadata.dev(), metadata.ino()),
            accepting: None,
        };
        let thread = std::thread::Builder::new().name("ipoib-control".into());
        server.accepting = Some(thread.spawn(move || accept(&shared))?);
        Ok(server)
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Unless somebody else has put another one there.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes accept(2), which then fails with EINVAL.
        let _ = rustix::net::shutdown(&self.shared.listener, Shutdown::Both);
        if let Some(thread) = self.accepting.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the control socket panicked");
        }
    }
}

/// A listening socket that nobody but its owner could connect to at any time.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    if let Err(error) = rustix::net::bind(&socket, &address) {
        if error != rustix::io::Errno::ADDRINUSE {
            return Err(error.into());
        }
        remove_stale(path)?;
        rustix::net::bind(&socket, &address)?;
    }
    // Until listen(2) connections are refused, so the mode is in time.
    chmod(path, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&socket, MAX_CLIENTS as i32)?;
    Ok(UnixListener::from(socket))
}

/// Removes the socket of a program that has died.
fn remove_stale(path: &Path) -> io::Result<()> {
    let error = |message: &str| Err(io::Error::new(ErrorKind::AddrInUse, message.to_owned()));
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return error(&format!("{} is there and is not a socket", path.display()));
    }
    match listens(path) {
        Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        _ => {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            error(&format!("{name} is already run by another ipoib"))
        }
    }
}

fn accept(shared: &Arc<Shared>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    for id in 0.. {
        let stream = shared.listener.accept();
        if shared.stopping.load(Ordering::SeqCst) {
            break;
        }
        threads.retain(|thread| !thread.is_finished());
        match stream {
            Ok((stream, _)) => threads.extend(start(shared, id, stream)),
            Err(error) => {
                // Out of file descriptors, likely: they come back when clients leave.
                tracing::warn!(%error, "a client of the control socket could not be accepted");
                std::thread::sleep(CAPTURE_TICK);
            }
        }
    }
    for stream in shared.clients.lock().values() {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("serving a client of the control socket panicked");
        }
    }
}

/// The thread of one client.
fn start(shared: &Arc<Shared>, id: u64, mut stream: UnixStream) -> Option<JoinHandle<()>> {
    if shared.clients.lock().len() >= MAX_CLIENTS {
        // There is room for this in an empty socket buffer.
        let _ = respond(
            &mut stream,
            Err("too many clients at a time; try again".into()),
        );
        return None;
    }
    let clone = stream
        .try_clone()
        .and_then(|clone| stream.set_write_timeout(Some(PATIENCE)).map(|()| clone));
    shared.clients.lock().insert(id, clone.ok()?);
    let thread = std::thread::Builder::new()
        .name("ipoib-client".into())
        .spawn({
            let shared = shared.clone();
            move || {
                let registered = Registered(&shared, id);
                if let Err(error) = serve(registered.0, &mut stream) {
                    tracing::debug!(%error, "a client of the control socket went away");
                }
            }
        });
    if thread.is_err() {
        shared.clients.lock().remove(&id);
    }
    thread.ok()
}

/// Takes a client off the list when its thread ends, however it does.
struct Registered<'a>(&'a Shared, u64);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.0.clients.lock().remove(&self.1);
    }
}

fn serve(shared: &Shared, stream: &mut UnixStream) -> io::Result<()> {
    let Some(line) = read_line(stream)? else {
        return Ok(());
    };
    let answer = match serde_json::from_slice::<Request>(&line) {
        Ok(Request::Show(what)) => shared.handler.show(what),
        Ok(Request::Resolve(ip)) => shared.handler.resolve(ip),
        Ok(Request::Umad) => match shared.handler.umad() {
            Ok(umad) => Ok(serde_json::to_value(umad)?),
            Err(error) => Err(error),
        },
        Ok(Request::Fault(what)) => shared.handler.fault(what),
        Ok(Request::Set(what)) => shared.handler.set(what),
        Ok(Request::Captured) => Ok(serde_json::to_value(*shared.captures.last.lock())?),
        Ok(Request::Capture { count }) => match shared.handler.tap() {
            Some(tap) => return capture(&shared.captures, &tap, count, stream),
            None => Err("there is nothing to capture from".into()),
        },
        Err(error) => Err(format!("not a request: {error}")),
    };
    respond(stream, answer)
}

/// The request without its newline; `None` if the client closes first, having said nothing.
fn read_line(stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    loop {
        // A client that sends a byte now and then gets no more time than others.
        let left = until.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let n = match stream.read(&mut piece) {
            Ok(0) if line.is_empty() => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = piece[..n].iter().position(|&b| b == b'\n');
        line.extend(&piece[..end.unwrap_or(n)]);
        if line.len() > MAX_REQUEST {
            respond(
                stream,
                Err(format!("a request of more than {MAX_REQUEST} bytes")),
            )?;
            return Err(ErrorKind::InvalidData.into());
        }
        if end.is_some() {
            return Ok(Some(line));
        }
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
    }
}

fn respond(to: &mut impl Write, answer: Result<Value, String>) -> io::Result<()> {
    let response = match answer {
        Ok(value) => Response::Ok(value),
        Err(error) => Response::Error(error),
    };
    let mut line = serde_json::to_vec(&response)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Makes room for the next capture, however this one ends.
struct Running<'a>(&'a AtomicBool, &'a Tap);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.1.stop();
        self.0.store(false, Ordering::SeqCst);
    }
}

fn capture(
    captures: &Captures,
    tap: &Tap,
    count: Option<u64>,
    stream: &mut UnixStream,
) -> io::Result<()> {
    if captures.running.swap(true, Ordering::SeqCst) {
        return respond(stream, Err("another capture is running here".into()));
    }
    let _running = Running(&captures.running, tap);
    let lost = || tap.dropped_full() + tap.dropped_unwritable();
    let before = lost();
    *captures.last.lock() = Captured::default();
    let frames = tap.start(CAPTURE_QUEUE);
    respond(stream, Ok(Value::Null))?;
    let client = stream.try_clone()?;
    // A client that is slow loses frames, which are counted, not the capture.
    stream.set_write_timeout(None)?;
    let mut to = PcapWriter::new(BufWriter::with_capacity(64 << 10, stream))?;
    to.flush()?;
    let mut written = 0;
    let mut asked_to_stop = false;
    while count.is_none_or(|count| written < count) {
        match frames.recv_timeout(CAPTURE_TICK) {
            Ok(frame) => {
                to.write(frame.time, &frame.bytes)?;
                written += 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        *captures.last.lock() = Captured {
            frames: written,
            dropped: lost() - before,
        };
        if frames.is_empty() {
            to.flush()?;
        }
        if !asked_to_stop && (frames.is_empty() || written % 64 == 0) && has_ended(&client)? {
            // What was captured until now is still written.
            asked_to_stop = true;
            tap.stop();
        }
    }
    *captures.last.lock() = Captured {
        frames: written,
        dropped: lost() - before,
    };
    to.flush()
}

/// Has the client closed, or shut down its sending side? (It has nothing more to say: anything counts as that.)
fn has_ended(client: &UnixStream) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(
        client.as_fd(),
        PollFlags::IN | PollFlags::RDHUP,
    )];
    Ok(poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )? > 0)
}
