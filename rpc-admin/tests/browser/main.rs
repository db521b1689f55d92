//! The page in a browser. Needs Chromium: `./.ci/run` installs it and runs these tests.
#![allow(missing_docs, unreachable_pub, reason = "the service here is an example")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod chromium;

use std::time::Duration;

use chromium::Browser;
use rpc_admin::{Admin, Recent};
use rpc_core::client::resolve::StaticList;
use rpc_core::{Channel, Server, ShutdownHandle, Status};
use test_kit::Watchdog;
use tokio::runtime::Runtime;

/// Text that a peer might send.
const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\">";

#[rpc_core::service]
trait Shop {
    async fn good(&self, goods: &[u8]) -> u64;
    async fn bad(&self) -> Result<u64, Status>;
    async fn wait(&self);
}

struct Counter;

impl Shop for Counter {
    async fn good(&self, goods: &[u8]) -> u64 {
        goods.len() as u64
    }

    async fn bad(&self) -> Result<u64, Status> {
        Err(Status::internal(HOSTILE))
    }

    async fn wait(&self) {
        std::future::pending().await
    }
}

/// A shop with customers that never stop, and its page.
struct World {
    runtime: Option<Runtime>,
    url: String,
    server: ShutdownHandle,
    page: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl World {
    fn start(name: &str, address: [u8; 4], is_busy: bool) -> Self {
        let runtime = Runtime::new().unwrap();
        let recent = Recent::new();
        let address = (address, 0);
        let name = format!("mem://browser-{name}");
        let (admin, server) = runtime.block_on(async {
            let server = Server::builder()
                .interceptor(recent.clone())
                .add_service(ShopServer::new(Counter))
                .grace(Duration::from_secs(3600))
                .bind(&name)
                .await
                .unwrap();
            let (stats, handle) = (server.stats_handle(), server.shutdown_handle());
            tokio::spawn(server.serve());
            let mut admin = Admin::new(stats).title("corner shop").recent(recent);
            if is_busy {
                let servers = StaticList::new([&name]).unwrap();
                let channel = Channel::builder().connect_balanced(servers).unwrap();
                admin = admin.channel("customers", &channel);
                let shop = ShopClient::new(channel);
                tokio::spawn(async move {
                    // It connects with the first call.
                    let _ = shop.good(&[7]).await;
                    let _waiting = shop.wait().start();
                    loop {
                        let _ = shop.good(&[7; 20_000]).await;
                        let _ = shop.bad().await;
                        // A pace that leaves a core to the browser; no test depends on it.
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                });
            }
            (admin.public().bind(address).await.unwrap(), handle)
        });
        let url = admin.url();
        let page = runtime.spawn(admin.serve());
        Self { runtime: Some(runtime), url, server, page }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn watchdog() -> Watchdog {
    Watchdog::within(Duration::from_secs(150))
}

fn text(id: &str) -> String {
    format!("document.getElementById('{id}').textContent")
}

/// Two points at least, of the first line of the first chart.
const HAS_LINE: &str =
    "document.querySelector('figure path.data')?.getAttribute('d')?.includes('L')";
/// The points of all charts. Times are drawn only for seconds with calls.
const HAS_LINES: &str = "[...document.querySelectorAll('figure:not([hidden])')]\
    .every(chart => chart.querySelector('path.data').getAttribute('d')?.includes('L'))";

#[test]
#[ignore = "needs Chromium: ./.ci/run installs it and runs this"]
fn the_page_shows_the_server_and_escapes_html() {
    let _watchdog = watchdog();
    let world = World::start("shows", [127, 0, 0, 1], true);
    let mut browser = Browser::start();
    browser.open(&world.url, 1600, "light");
    browser.until(HAS_LINES);
    browser.until(&format!("{}.includes('Shop.bad')", text("methods")));
    browser.until(&format!("{}.includes('Shop.bad')", text("failed")));
    let failed = browser.value(&text("failed"));
    assert!(failed.as_str().unwrap().contains(HOSTILE), "{failed}");
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 0);
    assert_eq!(browser.value("document.title"), "corner shop");
    assert_eq!(browser.value(&text("state")), "live");
    assert_eq!(browser.value("document.getElementById('public').hidden"), true);
    // Other calls are sometimes in flight.
    browser.until("[...document.querySelectorAll('#methods tr')].find(it => it.textContent.startsWith('Shop.wait'))?.children[6].textContent === '1'");
    let tiles =
        browser.value("[...document.querySelectorAll('.tile b')].map(it => it.textContent)");
    assert_ne!(tiles[4], "0", "Shop.wait is in flight: {tiles}");
    assert_eq!(tiles[5], "1", "a connection: {tiles}");
    assert_ne!(tiles[0], "0", "calls per second: {tiles}");
    // Selects a single method with the mouse, and all again with the keyboard.
    let row = "[...document.querySelectorAll('#methods tr')].find(it => it.textContent.startsWith('Shop.good'))";
    browser.value(&format!("{row}.click()"));
    assert_eq!(
        browser.value("document.querySelector('figure h2').textContent"),
        "Calls per second: Shop.good"
    );
    assert_eq!(
        browser.value("document.querySelectorAll('.tile b')[1].textContent"),
        "0",
        "it has no errors"
    );
    browser
        .value(&format!("{row}.dispatchEvent(new KeyboardEvent('keydown', {{ key: 'Enter' }}))"));
    assert_eq!(
        browser.value("document.querySelector('figure h2').textContent"),
        "Calls per second"
    );
    // The channel, which has no memory budget.
    browser.value("[...document.querySelectorAll('nav button')].find(it => it.textContent === 'customers').click()");
    assert_eq!(browser.value("document.querySelectorAll('figure:not([hidden])').length"), 3);
    browser.until(&format!("{}.startsWith('mem://browser-showsready')", text("members")));
    browser.until(&format!("{}.includes('named 1')", text("resolver")));
    assert_eq!(browser.value("document.getElementById('members-card').hidden"), false);
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    let strange = |it: &&String| !it.starts_with(&world.url) && !it.starts_with("data:");
    assert_eq!(
        browser.requests.iter().find(strange),
        None,
        "the page needs nothing from elsewhere"
    );
}

#[test]
#[ignore = "needs Chromium: ./.ci/run installs it and runs this"]
fn the_page_is_readable_in_all_layouts_busy() {
    let _watchdog = watchdog();
    let mut grounds = Vec::new();
    for (name, is_busy) in [("idle", false), ("busy", true)] {
        let world = World::start(name, [127, 0, 0, 1], is_busy);
        let mut browser = Browser::start();
        for (width, scheme) in [(400, "light"), (400, "dark"), (1600, "light"), (1600, "dark")] {
            browser.open(&world.url, width, scheme);
            browser.until(if is_busy { HAS_LINES } else { HAS_LINE });
            let at = format!("{name}, {width}, {scheme}");
            let wide = browser.value(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth",
            );
            assert_eq!(wide, 0, "{at}: it must not be scrolled sideways");
            // W3C requires a contrast of 4.5 for text.
            let contrast = browser.value(
                "(() => {
                    const probe = document.body.appendChild(document.createElement('i'));
                    const light = color => {
                        probe.style.color = `var(${color})`;
                        const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3);
                        const [r, g, b] = parts.map(it => it / 255).map(it => it <= .03928 ? it / 12.92 : ((it + .055) / 1.055) ** 2.4);
                        return .2126 * r + .7152 * g + .0722 * b + .05;
                    };
                    const ground = light('--card');
                    const least = Math.min(...['--ink', '--soft', '--faint'].map(light).map(it => Math.max(it / ground, ground / it)));
                    probe.remove();
                    return least;
                })()",
            );
            assert!(contrast.as_f64().unwrap() >= 4.5, "{at}: {contrast}");
            grounds.push(browser.value("getComputedStyle(document.body).backgroundColor"));
        }
        assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    }
    assert_ne!(grounds[0], grounds[1], "dark is another color than light");
}

#[test]
#[ignore = "needs Chromium: ./.ci/run installs it and runs this"]
fn the_page_warns_of_address_drain_and_silence() {
    let _watchdog = watchdog();
    let world = World::start("says", [0, 0, 0, 0], true);
    let mut browser = Browser::start();
    browser.open(&world.url, 1600, "dark");
    browser.until(&format!("{} === 'live'", text("state")));
    let public = browser.value(&text("public"));
    assert!(public.as_str().unwrap().starts_with("This page listens on 0.0.0.0:"), "{public}");
    assert_eq!(browser.value("document.getElementById('public').hidden"), false);
    // `wait` delays the end of the server.
    world.server.shutdown();
    browser.until(&format!("{} === 'shutting down'", text("state")));
    world.page.abort();
    browser.until(&format!("{} === 'no answer; these are the last numbers'", text("state")));
}
