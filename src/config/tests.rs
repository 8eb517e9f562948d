use super::*;
use fabric::sm::EndPort;
use wire::mad::attr::NodeType;

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("test.toml");
    std::fs::write(&path, text).expect("write");
    (dir, path)
}

fn keys(partition: &Partition, guid: u64) -> Vec<PKey> {
    let port = EndPort {
        guid: Guid(guid),
        node_type: NodeType::CA,
        own: false,
    };
    partition.keys_of(&port).collect()
}

#[test]
fn partitions_of_a_file_and_routing() {
    let (dir, path) = file("a=0x8001 : 0x5=full;\n\nb=2 : wrong;\n");
    let error = read_partitions(&path).expect_err("invalid").to_string();
    assert!(error.contains("test.toml, line 3: "), "{error}");
    std::fs::write(&path, "a=0x8001,ipoib : 0x5=full;\n").expect("write");
    let toml = format!(
        "partitions = {:?}\nrouting = \"updn\"\nroots = [\"0xa1\"]\nlmc = 1\nm_key = 5\n",
        path.display()
    );
    let config = dir.path().join("fabric.toml");
    std::fs::write(&config, &toml).expect("write");
    let sm = read::<FabricFile>(&config).and_then(|f| f.sm_config());
    let sm = sm.expect("valid");
    assert_eq!(keys(&sm.partitions[0], 5), [PKey(0x8001)]);
    let roots = vec![Guid(0xa1)];
    assert_eq!(sm.routing, RoutingEngine::UpDown { roots });
    assert_eq!((sm.lmc, sm.m_key.key), (1, 5));
    std::fs::write(&config, toml + "[[partition]]\npkey = \"0x8002\"\n").expect("write");
    let both = read::<FabricFile>(&config).and_then(|f| f.sm_config());
    assert!(both.is_err());
}

#[test]
fn a_whole_fabric_file() {
    let (_dir, path) = file(
        "listen = \"udp://127.0.0.1:7700\"\nallow = [\"192.0.2.0/24\"]\nports = 16\n\
         [[partition]]\npkey = \"0x7fff\"\nmtu = 4096\nrate = 100\n\
         [[partition]]\npkey = \"0x8001\"\nq_key = 0xabcd\nmembers = { \"0x100001\" = \"full\", \"0x100005\" = \"limited\" }\n",
    );
    let file: FabricFile = read(&path).expect("valid");
    let sm = file.sm_config().expect("valid");
    assert_eq!(sm.partitions.len(), 2);
    assert_eq!(keys(&sm.partitions[0], 7), [PKey(0xffff)]);
    assert_eq!(
        sm.partitions[0].ipoib.map(|p| (p.mtu, p.rate)),
        Some((MtuCode::MTU_4096, RateCode(16)))
    );
    assert_eq!(keys(&sm.partitions[1], 7), []);
    assert_eq!(keys(&sm.partitions[1], 0x100005), [PKey(0x0001)]);
    assert_eq!(sm.partitions[1].ipoib.map(|p| p.q_key), Some(QKey(0xabcd)));
}

#[test]
fn the_example_is_valid() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fabric.example.toml");
    let sm = read::<FabricFile>(&path)
        .and_then(|file| file.sm_config())
        .expect("valid");
    assert_eq!(sm.partitions.len(), 2);
}

#[test]
fn errors_name_file_and_line() {
    for (text, line, says) in [
        (
            "guid = \"0x1\"\nmtu = \"big\"\n",
            2,
            "invalid type: string \"big\", expected a whole number from 72 to 65520 (bytes), such as 2044",
        ),
        ("mtu = 1e3\n", 1, "from 72 to 65520 (bytes)"),
        ("[connected]\nidle = -1\n", 2, "from 1 to 86400 (seconds)"),
        ("[connected]\nretry_count = 8\n", 2, "from 0 to 7 (times)"),
        ("[connected]\nmax_connections = 0\n", 2, "from 1 to 65536"),
        ("\n\nwrong = 1\n", 3, "unknown field"),
        ("address = [\"10.0.0.1\"]\n", 1, "no prefix length"),
        ("pkey = \"0x8000\"\n", 1, "not a P_Key"),
    ] {
        let (_dir, path) = file(text);
        let error = read::<UpFile>(&path).expect_err("invalid").to_string();
        assert!(
            error.contains(&format!("test.toml, line {line}: ")) && error.contains(says),
            "{error}"
        );
    }
    let error = read::<UpFile>(Path::new("/nowhere/at/all"))
        .expect_err("absent")
        .to_string();
    assert!(error.contains("/nowhere/at/all"), "{error}");
}

#[test]
fn values_that_infiniband_does_not_have() {
    for text in [
        "mtu = 1500",
        "rate = 11.5",
        "members = { \"x\" = \"full\" }",
    ] {
        let (_dir, path) = file(&format!("[[partition]]\npkey = \"0x8001\"\n{text}\n"));
        let file: FabricFile = read(&path).expect("TOML");
        assert!(file.sm_config().is_err(), "{text}");
    }
}

#[test]
fn numbers_of_a_fabric_are_in_their_ranges() {
    for (text, words) in [
        ("ports = 0", "from 1 to 254"),
        ("sm_priority = 16", "from 0 to 15"),
        ("sweep_interval = 0", "(seconds)"),
        ("sweep_interval = 1.5", "(seconds)"),
        ("sweep_interval = 9223372036854775807", "from 1 to 86400"),
        ("lmc = 4", "from 0 to 3"),
        ("m_key = \"x\"", "expected a whole number"),
        ("[[partition]]\npkey = \"0x8001\"\nsl = 16", "from 0 to 15"),
        ("[[partition]]\npkey = \"0x8001\"\nq_key = -1", "Q_Key"),
    ] {
        let (_dir, path) = file(text);
        let error = read::<FabricFile>(&path).expect_err(text).to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}
