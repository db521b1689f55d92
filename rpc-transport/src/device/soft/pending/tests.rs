use std::sync::{Arc, Weak};

use super::*;

/// A listener with silent peers; each holds an object in place of its file.
struct Silence {
    pending: Pending<()>,
    files: Vec<Weak<()>>,
}

impl Silence {
    fn new(count: usize) -> Self {
        let mut silence = Self { pending: Pending::new(), files: Vec::new() };
        (0..count).for_each(|_| silence.start());
        silence
    }

    fn start(&mut self) {
        let file = Arc::new(());
        self.files.push(Arc::downgrade(&file));
        self.pending.start(async move {
            std::future::pending::<()>().await;
            drop(file);
            None
        });
    }

    /// The peers that are still connected.
    fn open(&self) -> Vec<usize> {
        let files = self.files.iter().enumerate();
        files.filter(|(_, file)| file.strong_count() > 0).map(|(peer, _)| peer).collect()
    }

    /// Runs until `accept` has been called, and returns whether it has accepted.
    async fn accept(&mut self, accept: impl Fn() -> io::Result<()>) -> bool {
        let address = Address::ShmName("silence".to_owned());
        let asked = std::cell::Cell::new(false);
        loop {
            let accept = async {
                asked.set(true);
                accept()
            };
            match self.pending.next(&address, accept).await.expect("the listener lives") {
                Event::Accepted(()) => return true,
                Event::Other if asked.get() => return false,
                _ => {}
            }
        }
    }
}

thread_local! {
    static IS_FULL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn spare_if_free() -> Option<OwnedFd> {
    (!IS_FULL.get()).then(open_spare).flatten()
}

fn out_of_files() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EMFILE))
}

/// A regression: 1,000 silent peers kept honest ones out of a server that had fewer files, for
/// as long as they liked.
#[tokio::test(start_paused = true)]
async fn out_of_descriptors_evicts_the_oldest_handshake() {
    let mut silence = Silence::new(3);
    assert!(!silence.accept(out_of_files).await);
    assert_eq!(silence.open(), [0, 1, 2], "they have just come");
    assert!(!silence.accept(out_of_files).await);
    assert!(silence.accept(|| Ok(())).await);
    assert_eq!(silence.open(), [1, 2]);
    assert!(!silence.accept(out_of_files).await);
    assert!(silence.accept(|| Ok(())).await);
    assert_eq!(silence.open(), [2]);
}

/// A regression: clients waited in the backlog until their own time limit, whose error blamed
/// firewalls.
#[tokio::test(start_paused = true)]
async fn without_any_file_the_next_peer_hears_why() {
    let mut pending = Pending::<()>::with_spares(spare_if_free);
    let address = Address::ShmName("full".to_owned());
    for _ in 0..2 {
        let lack = async { out_of_files() };
        let event = pending.next(&address, lack).await;
        assert!(matches!(event, Ok(Event::Other)), "{event:?}");
        let start = Instant::now();
        IS_FULL.set(true);
        let event = pending.next(&address, async { Ok(()) }).await;
        let Ok(Event::Refused((), why)) = event else { panic!("{event:?}") };
        assert!(why.contains("ulimit -n"), "{why}");
        assert_eq!(Instant::now(), start, "no pause");
        IS_FULL.set(false);
    }
    let event = pending.next(&address, async { Ok(()) }).await;
    assert!(matches!(event, Ok(Event::Accepted(()))), "{event:?}");
}

/// A regression: after one shortage the next peer was refused, hours later and with all files
/// free.
#[tokio::test(start_paused = true)]
async fn a_peer_after_a_shortage_is_welcome() {
    let mut pending = Pending::<()>::with_spares(spare_if_free);
    let address = Address::ShmName("free-again".to_owned());
    let lack = async { out_of_files() };
    assert!(matches!(pending.next(&address, lack).await, Ok(Event::Other)));
    for _ in 0..2 {
        let event = pending.next(&address, async { Ok(()) }).await;
        assert!(matches!(event, Ok(Event::Accepted(()))), "{event:?}");
    }
    // The spare is back for the next shortage.
    let lack = async { out_of_files() };
    assert!(matches!(pending.next(&address, lack).await, Ok(Event::Other)));
    IS_FULL.set(true);
    let event = pending.next(&address, async { Ok(()) }).await;
    assert!(matches!(event, Ok(Event::Refused(..))), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn refused_accept_is_not_retried_at_once() {
    for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
        let mut pending = Pending::<()>::new();
        let address = Address::ShmName("sandbox".to_owned());
        let refused = async { io::Result::<()>::Err(io::Error::from_raw_os_error(errno)) };
        let event = pending.next(&address, refused).await;
        assert!(matches!(event, Ok(Event::Other)), "{event:?}");
        assert!(pending.paused_until.is_some(), "errno {errno}");
    }
}

#[tokio::test(start_paused = true)]
async fn ended_handshakes_are_not_evicted_first() {
    let mut silence = Silence::new(0);
    for _ in 0..3 {
        silence.pending.start(async { None });
    }
    silence.start();
    while silence.pending.tasks.len() > 1 {
        silence.pending.tasks.join_next().await;
    }
    tokio::time::advance(MIN_HANDSHAKE_TIME).await;
    assert!(!silence.accept(out_of_files).await);
    assert!(silence.accept(|| Ok(())).await);
    assert_eq!(silence.open(), []);
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_accepting_waits_for_an_eviction() {
    let most = most();
    let mut silence = Silence::new(most);
    assert!(silence.accept(|| Ok(())).await, "one more");
    silence.start();
    assert_eq!(silence.open().len(), most + 1);
    assert!(silence.accept(|| Ok(())).await);
    assert_eq!(silence.open(), (1..=most).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_ends_makes_room_at_once() {
    let mut silence = Silence::new(1);
    assert!(!silence.accept(out_of_files).await);
    silence.pending.start(async { Some(()) });
    let address = Address::ShmName("silence".to_owned());
    let never = std::future::pending::<io::Result<()>>();
    let start = Instant::now();
    let event = silence.pending.next(&address, never).await;
    assert!(matches!(event, Ok(Event::Ready(()))), "{event:?}");
    assert!(silence.accept(|| Ok(())).await);
    assert_eq!((Instant::now(), silence.open()), (start, vec![0]), "no pause, and none dropped");
}
