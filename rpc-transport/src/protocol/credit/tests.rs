use super::*;

const WINDOW: Window = Window { data: 4, ack: 2 };
const BUDGET: SendQueueBudget =
    SendQueueBudget { data_slots: 8, ack_slots: 2, message_slots: 2, signal_interval: 3 };
const NOTHING: Grant = Grant { data: 0, ack: 0 };

fn credits() -> Credits {
    Credits::new(WINDOW, WINDOW, BUDGET).expect("valid")
}

#[test]
fn grants_and_marks_survive_their_encoding() {
    for (data, ack) in [(0, 0), (1, 2), (0xffff, 0), (0, 0xffff), (0xabcd, 0x1234)] {
        let grant = Grant { data, ack };
        assert_eq!(Grant::from_imm(grant.to_imm()), grant);
        let mark = SendQueueMark { data, ack };
        assert_eq!(SendQueueMark::from_bits(mark.to_bits()), mark);
    }
    assert_eq!(Grant { data: 0xabcd, ack: 0x1234 }.to_imm(), 0x1234_abcd);
}

#[test]
fn only_messages_that_fit_are_sent() {
    let mut credits = credits();
    assert!(!credits.can_send(0) && credits.can_send(2) && !credits.can_send(3));
    assert!(credits.send(3).is_none());
    assert_eq!(credits.counters().data_credits, 4);
}

#[test]
fn signals_at_interval_and_at_last_credit() {
    let mut credits = credits();
    let signals = [(); 4].map(|()| credits.send(1).expect("credit and slot").signaled);
    assert_eq!(signals, [false, false, true, true]);
    assert!(!credits.can_send(1));

    let wide = Window { data: 8, ..WINDOW };
    let mut credits = Credits::new(WINDOW, wide, BUDGET).expect("valid");
    let signals = [(); 6].map(|()| credits.send(1).expect("credit and slot").signaled);
    assert_eq!(signals, [false, false, true, false, false, true]);
}

#[test]
fn ack_with_the_last_credit_is_signaled() {
    let budget = SendQueueBudget { ack_slots: 9, signal_interval: 100, ..BUDGET };
    let mut credits = Credits::new(WINDOW, WINDOW, budget).expect("valid");
    let signals = [(); 2].map(|()| {
        (0..3).for_each(|_| credits.on_data(NOTHING).expect("in the window"));
        credits.poll_ack().expect("due, with a credit").signaled
    });
    assert_eq!(signals, [false, true]);
}

#[test]
fn signals_before_largest_message_lacks_slots() {
    let budget = SendQueueBudget { data_slots: 3, signal_interval: 100, ..BUDGET };
    let mut credits = Credits::new(WINDOW, WINDOW, budget).expect("valid");
    assert!(!credits.send(1).expect("3 slots").signaled);
    assert!(credits.send(1).expect("2 slots").signaled);
}

#[test]
fn one_completion_frees_all_slots_before_it() {
    let mut credits = credits();
    credits.now.posted = SendQueueMark { data: u16::MAX, ack: u16::MAX };
    let first = credits.send(2).expect("slots");
    let second = credits.send(2).expect("slots");
    credits.on_send_completion(first.mark);
    assert_eq!(credits.counters().data_slots, 6);
    credits.on_send_completion(second.mark);
    assert_eq!(credits.counters().data_slots, 8);
}

#[test]
fn header_takes_all_that_is_owed() {
    let mut credits = credits();
    let _first = credits.send(1).expect("credit");
    credits.on_data(NOTHING).expect("in the window");
    credits.on_ack(Grant { data: 1, ack: 0 }).expect("in the window");
    assert_eq!(credits.send(1).expect("credit").grant, Grant { data: 1, ack: 1 });
    assert_eq!(credits.send(1).expect("credit").grant, NOTHING);
}

#[test]
fn ack_is_due_at_more_than_half() {
    let mut credits = credits();
    for _ in 0..2 {
        credits.on_data(NOTHING).expect("in the window");
        assert!(credits.poll_ack().is_none());
    }
    credits.on_data(NOTHING).expect("in the window");
    let ack = credits.poll_ack().expect("3 of 4 are owed");
    assert_eq!(ack.grant, Grant { data: 3, ack: 0 });
    assert!(credits.poll_ack().is_none());
}

#[test]
fn idle_ack_leaves_the_last_credit() {
    let mut credits = credits();
    assert!(credits.poll_idle_ack().is_none(), "nothing is owed");
    let _data = credits.send(1).expect("credit");
    credits.on_ack(Grant { data: 1, ack: 0 }).expect("in the window");
    assert!(credits.poll_idle_ack().is_none(), "an ack alone is not worth an ack");
    credits.on_data(NOTHING).expect("in the window");
    assert!(!credits.poll_idle_ack().expect("two ack credits").signaled);
    credits.on_data(NOTHING).expect("in the window");
    assert!(credits.poll_idle_ack().is_none());
    assert_eq!(credits.counters().ack_credits, 1);
}

#[test]
fn every_broken_peer_rule_has_its_error() {
    let fresh = credits();
    let refused = |mut credits: Credits, event: fn(&mut Credits) -> Result<(), CreditError>| {
        let before = credits.clone();
        let error = event(&mut credits).expect_err("a broken rule");
        assert_eq!(credits, before, "unchanged by {error}");
        error
    };
    let over = |held, cap| CreditError::DataCreditAboveCap { held, granted: 1, cap };
    let data = Grant { data: 1, ack: 0 };
    assert_eq!(refused(fresh.clone(), |c| c.on_data(Grant { data: 1, ack: 0 })), over(4, 4));
    assert_eq!(
        refused(fresh.clone(), |c| c.on_ack(Grant { data: 0, ack: u16::MAX })),
        CreditError::AckCreditAboveCap { held: 2, granted: 0x3fff, cap: 2 }
    );
    assert_eq!(refused(fresh.clone(), |c| c.on_ack(NOTHING)), CreditError::EmptyAck);

    let mut full = fresh;
    for _ in 0..WINDOW.data {
        full.on_data(NOTHING).expect("in the window");
    }
    assert_eq!(
        refused(full.clone(), |c| c.on_data(NOTHING)),
        CreditError::DataBeyondWindow { window: 4 }
    );
    full.now.data_credits = 0;
    for _ in 0..WINDOW.ack {
        full.on_ack(data).expect("in the window");
    }
    assert_eq!(
        refused(full, |c| c.on_ack(Grant { data: 1, ack: 0 })),
        CreditError::AckBeyondWindow { window: 2 }
    );
}

/// Nothing that a peer sends panics or moves a counter out of its range.
#[test]
fn hostile_grants_are_harmless() {
    let mut credits = credits();
    let mut random = 1_u32;
    for _ in 0..100_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let wild = Grant::from_imm(random);
        let tame = Grant { data: wild.ack >> 14, ack: wild.ack >> 12 & 1 };
        let grant = if random & 1 << 20 == 0 { tame } else { wild };
        let _refused = match random >> 24 & 3 {
            0 => credits.on_data(grant),
            1 => credits.on_ack(grant),
            2 => credits.send(1).map_or(Ok(()), |stamp| {
                credits.on_send_completion(stamp.mark);
                Ok(())
            }),
            _ => credits.poll_ack().map_or(Ok(()), |stamp| {
                credits.on_send_completion(stamp.mark);
                Ok(())
            }),
        };
        let now = credits.counters();
        assert!(now.data_credits <= 4 && now.ack_credits <= 2);
        assert!(now.owed.data() <= 4 && now.owed.ack() <= 2);
    }
}

/// A pair whose first end offers so many data credits.
fn offering(data: u16) -> [Credits; 2] {
    let (own, peer) = (Window { data, ..WINDOW }, WINDOW);
    let budget = SendQueueBudget { data_slots: 200, signal_interval: 100, ..BUDGET };
    [Credits::new(own, peer, budget), Credits::new(peer, own, budget)]
        .map(|end| end.expect("valid"))
}

/// Sends all that may be sent; the grants of the headers.
fn send_all(from: &mut Credits) -> Vec<Grant> {
    std::iter::from_fn(|| from.send(1)).map(|stamp| stamp.grant).collect()
}

#[test]
fn window_doubles_at_threshold_up_to_the_offer() {
    let [mut receiver, mut sender] = offering(50);
    for (window, more) in [(8, Some(8)), (16, Some(16)), (32, Some(18)), (50, None)] {
        assert_eq!((receiver.local().data, sender.remote().data), (window, window));
        let frames = send_all(&mut sender);
        assert_eq!(frames.len(), window.into());
        for (spent, grant) in (1..).zip(frames) {
            receiver.on_data(grant).expect("in the window");
            let asked = if spent < receiver.local().data_threshold() { None } else { more };
            assert_eq!(receiver.wanted_growth(), asked, "{spent} of {window}");
        }
        assert_eq!(receiver.wanted_growth(), more);
        receiver.grow();
        let ack = receiver.poll_ack().expect("due").grant;
        assert_eq!(ack.is_grown(), more.is_some());
        assert_eq!(ack.credits().data, window + more.unwrap_or_default());
        sender.on_ack(ack).expect("as offered");
        sender.on_send_completion(sender.counters().posted);
        receiver.on_send_completion(receiver.counters().posted);
        // The sender's next header gives the ack credit back.
        receiver.now.ack_credits = 2;
        sender.now.owed.take_parts(false, true);
    }
}

#[test]
fn window_below_threshold_does_not_grow() {
    let [mut receiver, mut sender] = offering(64);
    for _ in 0..100 {
        for _ in 1..receiver.local().data_threshold() {
            let grant = sender.send(1).expect("credit").grant;
            receiver.on_data(grant).expect("in the window");
        }
        assert_eq!(receiver.wanted_growth(), None);
        assert_eq!(receiver.poll_ack(), None, "none is due");
        let ack = receiver.poll_idle_ack().expect("a spare credit").grant;
        sender.on_ack(ack).expect("as offered");
        sender.on_send_completion(sender.counters().posted);
        receiver.on_send_completion(receiver.counters().posted);
        receiver.now.ack_credits = 2;
        sender.now.owed.take_parts(false, true);
    }
    assert_eq!(receiver.local().data, 8);
}

#[test]
fn questions_that_were_on_their_way_grow_nothing() {
    let [mut receiver, mut sender] = offering(64);
    let asks = send_all(&mut sender).pop().expect("eight");
    assert_eq!(asks.asks(), Some(false));
    receiver.on_data(asks).expect("in the window");
    receiver.grow();
    receiver.on_data(asks).expect("in the window");
    assert_eq!((receiver.wanted_growth(), receiver.local().data), (None, 16));
}

#[test]
fn refused_window_may_be_requested_again() {
    let [mut receiver, mut sender] = offering(64);
    let asks = send_all(&mut sender).pop().expect("eight");
    for _ in 0..2 {
        receiver.on_data(asks).expect("in the window");
        assert_eq!(receiver.wanted_growth(), Some(8));
        receiver.decline_growth();
        assert_eq!((receiver.wanted_growth(), receiver.local().data), (None, 8));
    }
}

#[test]
fn peer_that_always_asks_gets_the_offer() {
    let [mut receiver, _] = offering(64);
    let mut posted = receiver.local().data;
    for turn in 0..1000 {
        let odd = if turn % 2 == 0 { 0 } else { Grant::ODD };
        receiver.on_data(Grant { data: 0, ack: Grant::ASKS | odd }).expect("in the window");
        posted += receiver.wanted_growth().unwrap_or_default();
        receiver.grow();
        receiver.now.owed = Owed::default();
    }
    assert_eq!((posted, receiver.local().data), (64, 64));
}

#[test]
fn growth_beyond_offer_and_unknown_words_are_refused() {
    let [_, mut sender] = offering(12);
    let _all = send_all(&mut sender);
    let grown = |data| Grant { data: data | Grant::GROWN, ack: 0 };
    let before = sender.clone();
    let above = CreditError::DataCreditAboveCap { held: 0, granted: 13, cap: 12 };
    assert_eq!(sender.on_data(grown(13)), Err(above));
    assert_eq!(sender, before);
    sender.on_data(grown(12)).expect("as offered");
    let before = sender.clone();
    assert_eq!(sender.on_data(grown(0)), Err(CreditError::GrownBeyondOffer { offered: 12 }));
    for ack in [Grant::ODD, 1 << 13, 1 << 12, Grant::ASKS | 1 << 13] {
        assert!(sender.on_data(Grant { data: 0, ack }).is_err(), "{ack:x}");
    }
    for data in [1 << 14, 1 << 13, 1 << 12] {
        assert!(sender.on_data(Grant { data, ack: 0 }).is_err(), "{data:x}");
    }
    for empty in [grown(0), Grant { data: 0, ack: Grant::ASKS }] {
        assert_eq!(sender.on_ack(empty), Err(CreditError::EmptyAck));
    }
    assert_eq!(sender, before);
}
