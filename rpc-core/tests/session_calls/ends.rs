//! Sessions that go away, and closed sessions.

use super::*;

#[test]
fn go_away_lets_calls_in_flight_end() {
    let (mut client, mut server) = pair();
    let id = start(&mut client);
    carry(&mut client, &mut server);
    let incoming = request(&mut server).id;
    let unsent = client.start(call(7), body("ping"), Some(8)).expect("started");
    server.go_away();
    carry(&mut server, &mut client);
    assert!(matches!(client.poll_event(), Some(Event::PeerGoingAway)));
    assert!(matches!(client.poll_event(), Some(Event::Wake(8))));
    assert_eq!(failure(&mut client, unsent), (Failure::PeerGoingAway, true));
    assert_eq!(why_not(&mut client, call(7)), StartError::PeerGoingAway);
    assert_eq!(carry(&mut client, &mut server), 0, "one call is in flight");
    server.reply(incoming, Answer::Ok(body("pong"))).expect("the caller waits");
    carry(&mut server, &mut client);
    assert_eq!(reply(&mut client, id).0, ReplyKind::Ok);
    assert_eq!(carry(&mut client, &mut server), 1);
    assert!(matches!(server.poll_event(), Some(Event::Drained)));
    assert!(server.is_drained() && !client.is_drained());
    start(&mut server);
}

#[test]
fn after_the_end_everything_has_ended() {
    let (mut client, mut server) = pair();
    let ids: Vec<CallId> = (0..3).map(|_| start(&mut client)).collect();
    let tags: Vec<u64> =
        std::iter::from_fn(|| client.poll_transmit(Instant::now)).map(|sent| sent.tag).collect();
    client.on_closed(CloseCause::Disconnected, &mut |tag| {
        if tag == tags[1] { Revoked::Whole } else { Revoked::TooLate }
    });
    assert!(matches!(client.close_cause(), Some(CloseCause::Disconnected)));
    let ends = ids.iter().map(|id| failure(&mut client, *id).1).collect::<Vec<_>>();
    assert_eq!(ends, [false, true, false]);
    assert_eq!(why_not(&mut client, call(7)), StartError::Closed);
    take(&mut client, b"anything").expect("dropped");

    let mut other = pair().0;
    for no_cancel in [false, true] {
        other.start(StartCall { no_cancel, ..call(7) }, body(""), None).expect("started");
    }
    carry(&mut other, &mut server);
    let running = [request(&mut server).id, request(&mut server).id];
    server.attach_handler(running[0], 1).expect("the caller waits");
    server.on_closed(CloseCause::Local, &mut too_late);
    assert!(matches!(server.poll_event(), Some(Event::CancelHandler(1))));
    assert!(server.poll_event().is_none());
    server.attach_handler(running[1], 2).expect("it must not be stopped");
    assert_eq!(server.incoming_calls(), 1);
    for id in running {
        assert!(server.reply(id, Answer::Ok(body(""))).is_err());
    }
    assert_eq!((server.incoming_calls(), frames(&mut server).len()), (0, 0));
}

/// A bit more than a quarter of a limit of 40 s at a time passes, without messages.
fn pass(end: &mut End, now: &mut Instant, quarters: u32) {
    for _ in 0..quarters {
        *now += Duration::from_secs(10) + MILLISECOND;
        end.on_timeout(*now, &mut too_late);
    }
}

#[test]
fn an_idle_session_says_go_away_and_drains() {
    let (mut client, mut server) = pair();
    let mut now = Instant::now();
    server.end_when_idle(Duration::from_secs(40), now);
    // A call is no idleness, however long it takes.
    start(&mut client);
    carry(&mut client, &mut server);
    let incoming = request(&mut server).id;
    pass(&mut server, &mut now, 20);
    assert_eq!(frames(&mut server).len(), 0);
    server.reply(incoming, Answer::Ok(body("pong"))).expect("the caller waits");
    carry(&mut server, &mut client);
    // Nor is a call that came and went between two checks.
    pass(&mut server, &mut now, 3);
    server.set_messages(2);
    pass(&mut server, &mut now, 4);
    assert_eq!((frames(&mut server).len(), server.running_deadlines()), (0, 0));
    pass(&mut server, &mut now, 1);
    assert!(server.ends_itself() && !server.is_drained());
    assert_eq!(carry(&mut server, &mut client), 1);
    assert_eq!(carry(&mut client, &mut server), 1);
    assert!(matches!(server.poll_event(), Some(Event::Drained)));
    assert_eq!(why_not(&mut server, call(7)), StartError::Stopped);
    pass(&mut server, &mut now, 5);
    assert!(server.poll_event().is_none(), "it is said once");
}

#[test]
fn an_old_session_ends_when_its_calls_have() {
    let (mut client, mut server) = pair();
    let mut now = Instant::now();
    server.end_when_old(Duration::from_secs(25), now);
    start(&mut client);
    carry(&mut client, &mut server);
    let incoming = request(&mut server).id;
    pass(&mut server, &mut now, 2);
    assert_eq!((frames(&mut server).len(), server.running_deadlines()), (0, 0));
    pass(&mut server, &mut now, 1);
    assert!(server.ends_itself());
    assert_eq!(carry(&mut server, &mut client), 1, "one go-away");
    pass(&mut server, &mut now, 10);
    assert!(server.poll_event().is_none(), "a call still runs");
    server.reply(incoming, Answer::Ok(body("pong"))).expect("the caller waits");
    // The peer answers nothing.
    pass(&mut server, &mut now, 1);
    assert!(matches!(server.poll_event(), Some(Event::Drained)));
    pass(&mut server, &mut now, 10);
    assert!(server.poll_event().is_none(), "it is said once");
    assert_eq!(server.next_deadline(), None);
}

#[test]
fn an_idle_session_waits_for_no_answer() {
    let (mut client, mut server) = pair();
    let mut now = Instant::now();
    server.end_when_idle(Duration::from_secs(40), now);
    pass(&mut server, &mut now, 4);
    assert!(server.ends_itself());
    // A request that crossed the go-away still runs.
    start(&mut client);
    carry(&mut client, &mut server);
    let incoming = request(&mut server).id;
    pass(&mut server, &mut now, 3);
    assert!(server.poll_event().is_none());
    server.reply(incoming, Answer::Ok(body("pong"))).expect("the caller waits");
    pass(&mut server, &mut now, 1);
    assert!(matches!(server.poll_event(), Some(Event::Drained)));
    assert_eq!(server.next_deadline(), None);
}
