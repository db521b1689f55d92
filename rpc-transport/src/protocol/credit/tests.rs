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
fn signals_at_the_interval_and_at_the_last_credit() {
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
fn signals_before_the_largest_message_is_short_of_slots() {
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
fn every_broken_rule_of_the_peer_has_its_error() {
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
        CreditError::AckCreditAboveCap { held: 2, granted: u16::MAX, cap: 2 }
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
        assert!(now.owed.data <= 4 && now.owed.ack <= 2);
    }
}
