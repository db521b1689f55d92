//! Bodies that a session gives up are returned, to be dropped by the caller.

use super::*;

/// A body with a tail, whose memory may be the user's.
fn with_tail() -> OutBuf {
    let mut out = body("head");
    out.push_tail(OutPart::shared(Arc::new(vec![7; 10_000])));
    out
}

/// Runs a step as if under the lock of a shard, where debug builds panic if a body with a tail is
/// dropped. Returns the bodies given up.
fn discarded(end: &mut End, step: impl FnOnce(&mut End)) -> usize {
    {
        let _holds = HoldsShard::begin();
        step(end);
    }
    let events = std::iter::from_fn(|| end.poll_event());
    events.filter(|event| matches!(event, Event::Discard(_))).count()
}

/// Regression: requests that waited for a slot, or to be polled, were dropped in the session.
#[test]
fn an_unsent_request_is_returned_for_dropping() {
    let began = Instant::now();
    let waits = |end: &mut End| {
        let deadline = Some(Deadline { at: began + MILLISECOND, now: began });
        end.start(StartCall { deadline, ..call(7) }, with_tail(), None).expect("started")
    };
    let mut client = pair().0;
    let id = waits(&mut client);
    assert_eq!(discarded(&mut client, |end| assert_eq!(end.cancel(id, &mut too_late), None)), 1);
    waits(&mut client);
    let later = began + 9 * MILLISECOND;
    assert_eq!(discarded(&mut client, |end| end.on_timeout(later, &mut too_late)), 1);
    waits(&mut client);
    assert_eq!(discarded(&mut client, |end| assert!(end.poll_transmit(|| later).is_none())), 1);
    // Bodies that another connection may take are kept for the waiting call, and returned if not
    // taken.
    let end_of = |end: &mut End, id| assert!(end.take_outcome(id).is_some());
    let ends: [fn(&mut End); 2] = [
        |end| take(end, &wire::go_away(false)).expect("legal"),
        |end| end.on_closed(CloseCause::Disconnected, &mut too_late),
    ];
    for ends in ends {
        let mut client = pair().0;
        let id = waits(&mut client);
        assert_eq!(discarded(&mut client, ends), 0);
        assert_eq!(discarded(&mut client, |end| end_of(end, id)), 1);
        let mut client = pair().0;
        let id = waits(&mut client);
        ends(&mut client);
        assert_eq!(
            discarded(&mut client, |end| assert_eq!(end.cancel(id, &mut too_late), None)),
            1
        );
        let mut client = pair().0;
        let id = waits(&mut client);
        ends(&mut client);
        assert!(client.take_request(id).is_some_and(|request| !request.tail().is_empty()));
        assert_eq!(discarded(&mut client, |end| end_of(end, id)), 0, "it was taken");
    }
}

/// Regression: replies whose caller or connection was gone were dropped in the session.
#[test]
fn an_unsent_reply_is_returned_for_dropping() {
    let arrived = || {
        let (mut client, mut server) = pair();
        let id = start(&mut client);
        carry(&mut client, &mut server);
        let incoming = request(&mut server).id;
        (client, server, id, incoming)
    };
    let answer = |end: &mut End, id| end.reply(id, Answer::Ok(with_tail()));
    let lost = |end: &mut End| end.on_closed(CloseCause::Disconnected, &mut too_late);

    let (mut client, mut server, id, incoming) = arrived();
    client.cancel(id, &mut too_late);
    carry(&mut client, &mut server);
    assert_eq!(discarded(&mut server, |end| assert!(answer(end, incoming).is_err())), 1);

    let (mut client, mut server, id, incoming) = arrived();
    answer(&mut server, incoming).expect("the caller waits");
    client.cancel(id, &mut too_late);
    let cancel = frames(&mut client);
    assert_eq!(discarded(&mut server, |end| take(end, &cancel[0]).expect("legal")), 1);

    let (_, mut server, _, incoming) = arrived();
    answer(&mut server, incoming).expect("the caller waits");
    assert_eq!(discarded(&mut server, lost), 1);

    let (_, mut server, _, incoming) = arrived();
    lost(&mut server);
    assert_eq!(discarded(&mut server, |end| assert!(answer(end, incoming).is_err())), 1);
}
