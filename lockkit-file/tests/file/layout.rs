use std::fs;

use lockkit_core::Label;
use lockkit_core::driver::Driver as _;

use crate::support::{Fixture, claim, token};

const SLOT: usize = 4096;

/// A folder of lockkit 0.1 stays usable: a change of this file is a new layout.
#[tokio::test]
async fn layout_1_is_as_it_was() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path().join("lockkit")).unwrap();
    let file = fixture.file("orders%2f42");
    fs::write(&file, include_str!("layout-1")).unwrap();
    let driver = fixture.driver().await;
    let held = claim("orders/42").with_label(Label::new("web-3:4711").unwrap());
    let token = token(&driver, &held).await;
    // What lockkit 0.1 has granted, on the first of January 2100.
    assert_eq!(token, 4_102_444_800_000_001);

    let content = fs::read(&file).unwrap();
    assert_eq!(content.len(), 2 * SLOT);
    assert!(content.starts_with(include_bytes!("layout-1")));
    let lines = |slot: &[u8]| {
        let text = String::from_utf8(slot.to_vec()).unwrap();
        text.trim_end_matches('\0').lines().map(String::from).collect::<Vec<_>>()
    };
    let grant = lines(&content[SLOT..]);
    assert_eq!(grant[..3], ["lockkit-file 1", "state held", "token 4102444800000001"]);
    // Where the run of the kernel can be known.
    let reserve = usize::from(cfg!(any(target_os = "linux", target_os = "android")));
    for line in &grant[3..3 + reserve] {
        let (until, boot) = line.strip_prefix("reserve ").unwrap().split_once(' ').unwrap();
        assert_eq!((until, boot.len()), ("4102444801000001", 36));
    }
    let rest = &grant[3 + reserve..];
    let owner = format!("owner {}", held.owner());
    assert_eq!(rest[..2], [owner.as_str(), "label web-3:4711"]);
    let since = rest[2].strip_prefix("since ").unwrap();
    assert!(since.parse::<u64>().is_ok(), "{since}");
    assert_eq!(rest[3], "name orders/42");
    assert_eq!(rest[4].strip_prefix("sha256 ").unwrap().len(), 64);
    assert_eq!(rest.len(), 5);

    driver.release(&held).await.unwrap();
    let content = fs::read(&file).unwrap();
    let end = lines(&content[..SLOT]);
    assert_eq!(end[1], "state free");
    assert_eq!(end[2..grant.len() - 1], grant[2..grant.len() - 1]);
    assert_eq!(lines(&content[SLOT..]), grant);
}
