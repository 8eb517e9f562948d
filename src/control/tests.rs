use super::client::{choose, running_in};
use super::*;
use ::fabric::link::LinkSink;
use ::fabric::link::capture::Tap;
use ::fabric::link::pcap::PcapReader;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use tempfile::TempDir;
use wire::packet::{Bth, Extended, Lrh, Opcode, Packet};

struct Fake {
    tap: Option<Arc<Tap>>,
}

impl Handler for Fake {
    fn show(&self, what: ShowWhat) -> Result<Value, String> {
        match what {
            ShowWhat::Link => Ok(json!({ "name": "ib0", "state": "up" })),
            ShowWhat::Stats => panic!("a broken handler"),
            _ => Err("no such topic here".into()),
        }
    }
    fn resolve(&self, ip: IpAddr) -> Result<Value, String> {
        Ok(json!({ "ip": ip }))
    }
    fn tap(&self) -> Option<Arc<Tap>> {
        self.tap.clone()
    }
}

struct Nowhere;

impl LinkSink for Nowhere {
    fn receive(&self, _: &[Packet<'_>]) {}
    fn link_changed(&self, _: bool) {}
}

struct Setup {
    directory: TempDir,
    server: Server,
    instance: Instance,
    tap: Arc<Tap>,
}

fn setup() -> Setup {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("ib0.sock");
    let tap = Arc::new(Tap::default());
    let server = Server::start(
        &path,
        Arc::new(Fake {
            tap: Some(tap.clone()),
        }),
    )
    .expect("starts");
    let instance = Instance {
        name: "ib0".into(),
        path,
    };
    Setup {
        directory,
        server,
        instance,
        tap,
    }
}

fn packet() -> Packet<'static> {
    let bth = Bth {
        opcode: Opcode::RC_SEND_ONLY,
        ..Bth::default()
    };
    Packet {
        lrh: Lrh::default(),
        grh: None,
        bth,
        ext: Extended::default(),
        payload: b"abcd",
        lso: None,
        icrc: None,
        hops: 0,
    }
}

/// Sends bytes as they are and reads until the end.
fn raw(setup: &Setup, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(&setup.instance.path).expect("connects");
    // A server that has heard enough closes.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("text")
}

#[test]
fn requests_are_answered() {
    let setup = setup();
    assert_eq!(
        ask(&setup.instance, &Request::Show(ShowWhat::Link)).expect("answer")["state"],
        "up"
    );
    let ip: IpAddr = "fd77::1".parse().expect("address");
    assert_eq!(
        ask(&setup.instance, &Request::Resolve(ip)).expect("answer"),
        json!({ "ip": "fd77::1" })
    );
    let error = ask(&setup.instance, &Request::Show(ShowWhat::Mcast)).expect_err("refused");
    assert_eq!(error.to_string(), "ib0: no such topic here");
    assert_eq!(
        raw(&setup, b"{\"show\":\"link\"}\n"),
        "{\"ok\":{\"name\":\"ib0\",\"state\":\"up\"}}\n"
    );
}

#[test]
fn the_socket_is_private_and_goes_with_the_server() {
    let Setup {
        directory,
        server,
        instance,
        ..
    } = setup();
    let metadata = std::fs::metadata(server.path()).expect("there");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(
        running_in(&[directory.path().to_owned()]),
        std::slice::from_ref(&instance)
    );
    let error = Server::start(&instance.path, Arc::new(Fake { tap: None }))
        .err()
        .expect("refused");
    assert_eq!(
        (error.kind(), error.to_string()),
        (
            ErrorKind::AddrInUse,
            "ib0 is already run by another ipoib".into()
        )
    );
    // The refusal did no harm.
    assert!(ask(&instance, &Request::Show(ShowWhat::Link)).is_ok());
    drop(server);
    assert!(!instance.path.exists());
    let error = ask(&instance, &Request::Captured).expect_err("ended");
    assert!(
        error.to_string().starts_with("ib0 does not run: "),
        "{error}"
    );
}

#[test]
fn a_dead_programs_socket_is_replaced_and_a_file_is_not() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("ib0.sock");
    // A listener leaves its socket behind.
    drop(UnixListener::bind(&path).expect("binds"));
    assert_eq!(running_in(&[directory.path().to_owned()]), []);
    let instance = Instance {
        name: "ib0".into(),
        path: path.clone(),
    };
    let error = ask(&instance, &Request::Captured).expect_err("dead");
    assert!(
        error.to_string().contains("does not run any more"),
        "{error}"
    );
    let server = Server::start(&path, Arc::new(Fake { tap: None })).expect("starts");
    assert!(ask(&instance, &Request::Show(ShowWhat::Link)).is_ok());
    // A server leaves alone what others have put in its place.
    std::fs::remove_file(&path).expect("removes");
    std::fs::write(&path, "mine").expect("writes");
    drop(server);
    assert_eq!(std::fs::read_to_string(&path).expect("there"), "mine");
    let error = Server::start(&path, Arc::new(Fake { tap: None }))
        .err()
        .expect("refused");
    assert!(error.to_string().ends_with("is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).expect("there"), "mine");
    let absent = directory.path().join("absent/ib0.sock");
    let error = Server::start(&absent, Arc::new(Fake { tap: None }))
        .err()
        .expect("refused");
    assert!(error.to_string().contains("absent/ib0.sock: "), "{error}");
}

#[test]
fn hostile_clients_do_no_harm() {
    let setup = setup();
    assert_eq!(raw(&setup, b""), "");
    assert_eq!(raw(&setup, b"{\"show\":\"link\"}"), "");
    for bad in [
        "\n",
        "{\n",
        "null\n",
        "{\"show\":\"secrets\"}\n",
        "{\"resolve\":\"host\"}\n",
        "\u{0}\u{1}\n",
        "[[[[[[[[\n",
        "{\"capture\":{\"count\":-1}}\n",
    ] {
        assert!(
            raw(&setup, bad.as_bytes()).starts_with("{\"error\":\"not a request: "),
            "{bad:?}"
        );
    }
    let nested = [vec![b'['; 60_000], vec![b'\n']].concat();
    assert!(raw(&setup, &nested).starts_with("{\"error\":\"not a request: "));
    // Of what is refused while it is still being sent, the answer may be lost.
    let long = raw(&setup, &vec![b' '; 1 << 20]);
    assert!(
        long.is_empty() || long.contains("more than 65536 bytes"),
        "{long}"
    );
    assert_eq!(
        raw(&setup, b"{\"show\":\"stats\"}\n"),
        "",
        "its handler panics"
    );
    assert!(ask(&setup.instance, &Request::Show(ShowWhat::Link)).is_ok());
}

#[test]
fn silent_clients_take_no_more_than_their_places() {
    let setup = setup();
    let mut silent = Vec::new();
    let full = loop {
        silent.push(UnixStream::connect(&setup.instance.path).expect("connects"));
        match ask(&setup.instance, &Request::Show(ShowWhat::Link)) {
            Ok(_) => assert!(silent.len() <= 16, "no bound"),
            Err(error) => break error,
        }
    };
    assert!(full.to_string().contains("too many clients"), "{full}");
    drop(silent);
    // Their threads end in their own time.
    while ask(&setup.instance, &Request::Show(ShowWhat::Link)).is_err() {
        std::thread::yield_now();
    }
    // Dropping the server cuts off whoever is connected.
    let mut last = UnixStream::connect(&setup.instance.path).expect("connects");
    drop(setup.server);
    assert_eq!(last.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn a_capture_ends_at_its_count() {
    let setup = setup();
    let sink = setup.tap.sink(Arc::new(Nowhere));
    let answer = open(&setup.instance, &Request::Capture { count: Some(3) }).expect("starts");
    let error = ask(&setup.instance, &Request::Capture { count: None }).expect_err("one at a time");
    assert!(error.to_string().contains("another capture"), "{error}");
    sink.receive(&[packet(), packet()]);
    sink.receive(&[packet(), packet()]);
    let frames: Vec<_> = PcapReader::new(answer.stream)
        .expect("pcap")
        .map(|frame| frame.expect("frame").bytes)
        .collect();
    let mut bytes = Vec::new();
    packet().emit_into(&mut bytes).expect("fits");
    assert_eq!(frames, vec![bytes; 3]);
    let captured: Captured =
        serde_json::from_value(ask(&setup.instance, &Request::Captured).expect("answer"))
            .expect("shape");
    assert_eq!(
        captured,
        Captured {
            frames: 3,
            dropped: 0
        }
    );
}

#[test]
fn a_capture_stopped_by_its_client_keeps_what_was_captured() {
    let setup = setup();
    let sink = setup.tap.sink(Arc::new(Nowhere));
    let answer = open(&setup.instance, &Request::Capture { count: None }).expect("starts");
    sink.receive(&[packet(); 100]);
    answer
        .stream
        .get_ref()
        .shutdown(Shutdown::Write)
        .expect("open");
    assert_eq!(
        PcapReader::new(answer.stream)
            .expect("pcap")
            .filter(|frame| frame.is_ok())
            .count(),
        100
    );
    // The place is free again as soon as the thread has ended.
    let again = loop {
        if let Ok(again) = open(&setup.instance, &Request::Capture { count: None }) {
            break again;
        }
        std::thread::yield_now();
    };
    // The end of the server ends the capture.
    drop(setup.server);
    assert_eq!(
        PcapReader::new(again.stream).map_or(0, |reader| reader.flatten().count()),
        0
    );
}

#[test]
fn nothing_to_capture_from() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("x.sock");
    let _server = Server::start(&path, Arc::new(Fake { tap: None })).expect("starts");
    let error = ask(
        &Instance {
            name: "x".into(),
            path,
        },
        &Request::Capture { count: None },
    )
    .expect_err("no tap");
    assert_eq!(error.to_string(), "x: there is nothing to capture from");
}

#[test]
fn which_one_is_meant() {
    let all = |names: &[&str]| {
        names
            .iter()
            .map(|n| Instance {
                name: n.to_string(),
                path: PathBuf::new(),
            })
            .collect::<Vec<_>>()
    };
    let chosen = |names: &[&str], on, what| {
        choose(all(names), on, what, || "\nroot runs ib9".into())
            .map(|i| i.name)
            .map_err(|e| e.to_string())
    };
    let usual = ["fabric@7700", "ib0"];
    assert_eq!(
        chosen(&usual, None, Some(ShowWhat::Neigh)),
        Ok("ib0".into())
    );
    assert_eq!(
        chosen(&usual, None, Some(ShowWhat::Fabric)),
        Ok("fabric@7700".into())
    );
    assert_eq!(
        chosen(&usual, Some("fabric@7700"), None),
        Ok("fabric@7700".into())
    );
    assert_eq!(chosen(&["ib0"], None, None), Ok("ib0".into()));
    assert_eq!(
        chosen(&usual, None, None),
        Err("several run here; choose one with --on: fabric@7700, ib0".into())
    );
    assert_eq!(
        chosen(&usual, Some("ib1"), None),
        Err("no ib1 runs here; what runs: fabric@7700, ib0\nroot runs ib9".into())
    );
    assert_eq!(
        chosen(&["fabric@1"], None, Some(ShowWhat::Link)),
        Err("no interface runs here; what runs: fabric@1\nroot runs ib9".into())
    );
    assert!(
        chosen(&[], None, None)
            .is_err_and(|e| e.contains("ipoib up") && e.ends_with("root runs ib9"))
    );
}

#[test]
fn directories_of_others_are_not_used() {
    let directory = tempfile::tempdir().expect("temporary directory");
    assert!(check_directory(directory.path()).is_ok());
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path(), &link).expect("link");
    assert!(
        check_directory(&link).is_err(),
        "a link leads where others want"
    );
    let open = directory.path().join("open");
    std::fs::create_dir(&open).expect("directory");
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).expect("mode");
    assert!(check_directory(&open).is_err_and(|e| e.to_string().contains("others may write")));
    assert!(check_directory(&directory.path().join("absent")).is_err());
    for name in ["", ".", "../x", "a/b"] {
        assert!(socket_path(name).is_err(), "{name:?}");
    }
}

/// Of one that runs there is a way to ask it; one that died, and what is no socket, is nothing.
#[test]
fn what_others_run_is_named() {
    use super::others::in_words;
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = |name: &str| directory.path().join(name);
    assert_eq!(in_words(&path("absent")), None);
    std::fs::write(path("file.sock"), "").expect("a file");
    drop(UnixListener::bind(path("dead.sock")).expect("a socket"));
    assert_eq!(in_words(directory.path()), None);
    let _alive = UnixListener::bind(path("ib0.sock")).expect("a socket");
    let words = in_words(directory.path()).expect("something runs");
    let way = format!(" runs some: --control {}", path("ib0.sock").display());
    assert!(words.ends_with(&way), "{words}");
}

/// A program that is stopped, or another user's that listens and takes nobody, makes nobody wait for ever.
#[test]
fn who_takes_nobody_is_not_waited_for() {
    use super::connect::connect;
    use super::others::in_words;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("ib0.sock");
    let full = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    bind(&full, &SocketAddrUnix::new(&path).expect("a path")).expect("bound");
    listen(&full, 0).expect("it listens");
    let _only = UnixStream::connect(&path).expect("room for one");
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let place = directory.path().to_owned();
        let running = running_in(std::slice::from_ref(&place));
        let connected = connect(&path, std::time::Duration::from_millis(10));
        let kind = connected.map_err(|error| error.kind()).err();
        let taken = Server::start(&path, Arc::new(Fake { tap: None })).is_err();
        let _ = say.send((in_words(&place), running.len(), kind, taken));
    });
    let said = said.recv_timeout(std::time::Duration::from_secs(60));
    let (words, running, kind, taken) = said.expect("it waits");
    let words = words.expect("something runs");
    assert!(words.contains("ib0.sock"), "{words}");
    assert_eq!((running, kind), (1, Some(std::io::ErrorKind::WouldBlock)));
    assert!(taken, "its socket was taken from it");
}
