//! What is left when the code under the lock panics.

use super::*;

/// What a run has left when a panic ends it is posted again where others have it, too.
#[tokio::test]
async fn shared_receives_come_back_after_a_panic() {
    const WINDOW: u16 = 8;
    let config = LinkConfig::default().keep_alive(None).data_credits(WINDOW);
    let sharing = config.clone().shared_receive_queue(true);
    let mut listener = soft::listen_mem("shard-shared-panic").unwrap();
    let address = listener.local_address();
    let device = soft::mem_device();
    let entries = crate::engine::establish::server_completions(&sharing, &**device);
    let domain = device.allocate_pd().unwrap();
    let server: Arc<Shard<Simple>> =
        Shard::of_server(Arc::clone(device), domain, entries, &sharing).unwrap();
    server.lock().set_mode(PollMode::Busy);
    for bomb in 1..=usize::from(WINDOW) {
        let domain = device.allocate_pd().unwrap();
        let client: Arc<Shard<Simple>> = Shard::new(Arc::clone(device), domain, 1024).unwrap();
        let outgoing = soft::MemConnector.resolve(&address).await.unwrap();
        let limit = Duration::from_secs(60);
        let (connected, accepted) = tokio::join!(
            client.connect(outgoing, &address, &config, limit, Simple::default()),
            async {
                let incoming = listener.incoming().await.unwrap();
                server.accept(incoming, &sharing, Simple::default()).await
            }
        );
        let (connected, accepted) = (connected.unwrap().key, accepted.unwrap().key);
        // So many messages that receives which did not come back would be missing here.
        for _ in 0..4 {
            (1..WINDOW).for_each(|_| send(&client, connected));
            for shard in [&server, &server, &client, &client] {
                shard.lock().poll();
            }
            assert!(
                server.close_cause(accepted).is_none() && client.close_cause(connected).is_none()
            );
        }
        let received = server.look(accepted, |protocol| protocol.received).unwrap();
        server.with(accepted, |protocol| protocol.bomb = Some(received + bomb)).unwrap();
        (0..WINDOW).for_each(|_| send(&client, connected));
        let wait = || server.with_progress(accepted, true, |_| (), |_, ()| Progress::Wait);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)).unwrap_err();
        server.release(accepted);
        client.release(connected);
        while server.connection_count() + client.connection_count() > 0 {
            for shard in [&server, &client] {
                let mut state = shard.lock();
                state.poll();
                state.take_actions(&mut std::collections::VecDeque::new());
                state.leave().run();
            }
        }
        assert_eq!((server.shares().unwrap().used(), server.shares().unwrap().spent()), (0, 0));
    }
}
