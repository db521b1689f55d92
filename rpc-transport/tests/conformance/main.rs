//! The conformance suite: each rule of the device contract is a test, and every provider passes all
//! of them. A provider joins by a [`fixture::Fixture`] and a line at the end of this file.
//!
//! `sNN` in a name is the number of a claim of the RDMA literature, see `seeds`. Rule 19 (peer data
//! never panics) has a suite of its own for each wire: `hostile_soft`.

#![allow(missing_docs, unsafe_code, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod connections;
#[path = "../../examples/toy_device/device.rs"]
mod device;
mod doorbells;
mod fixture;
mod queues;
mod remote;
mod seeds;
#[path = "../../examples/toy_device/setup.rs"]
mod setup;
mod shared;
mod soft;
mod toy;
#[cfg(feature = "verbs")]
mod verbs;
mod windows;

/// Runs the suite for a fixture, in a module of the given name.
macro_rules! conformance {
    ($module:ident, $fixture:expr) => {
        conformance! {
            $module, $fixture,
            queues {
                rule01_order
                rule04_unsignaled
                rule04_signaled_frees_the_unsignaled_before
                rule05_queues_are_unordered
                rule06_s60_accepted_messages_outlive_the_sender
                rule07_s73_states
                rule08_s28_flush
                rule08_the_failed_wr_has_its_own_status
                rule09_s61_s84_rnr
                rule10_too_long
                rule12_bounded_queues
                rule12_recvs_that_do_not_fit_stay
                rule12_s33_what_does_not_fit_is_refused
                rule13_s37_bounded_cq
                rule14_buffers_come_back
                rule14_s45_s82_post_gathers_inline_bytes
                rule20_zero_length
                rule21_traffic
            }
            doorbells {
                rule03_arming
                rule03_s52_queued_completions_fire_nothing
                rule03_sends_of_the_last_poll_wake
                rule03_silent_traffic_does_not_spend_the_arming
                rule17_linked_posts
                rule17_a_last_inline_post_rings
                rule17_held_doorbell_rings_by_poll_flush_arm
            }
            remote {
                rule02_visibility
                rule02_large_transfers
                rule11_bad_access_kills_both_and_writes_nothing
                rule11_s77_bounds_hold_after_good_writes
                rule11_access_rights
                rule11_s79_keys_of_another_domain_or_region
                rule11_deregistered_memory_is_not_written
                rule11_local_memory_of_another_domain
                rule11_s41_recv_memory_of_another_domain
                rule11_s77_memory_may_be_registered_twice
                rule11_user_memory
                rule15_s59_handles_dropped_while_in_use
                rule15_destroying_with_work_outstanding
                s40_s48_only_send_and_immediate_consume_recvs
                s47_send_with_imm
                s49_write_with_imm_leaves_the_recv_buffer
                s49_s75_write_with_imm_needs_a_recv
                s50_read
                s50_many_reads_at_once
                s68_one_sided_operations_complete_only_locally
            }
            connections {
                rule03_connection_established_after_arming_wakes
                rule16_disconnect_when_the_peer_is_destroyed
                rule16_disconnect_when_the_peer_goes_to_error
                rule16_disconnect_wakes_an_armed_cq
                rule16_outstanding_sends_fail_with_the_peer
                rule18_private_data_travels_and_is_padded
                rule18_too_much_private_data_is_refused_locally
                rule18_rejection_carries_its_reason
                rule18_s03_recvs_precede_the_peers_sends
                rule18_other_or_abandoned_queue_pair_is_unused
                rule18_s08_requests_reach_their_own_listener
                rule18_nobody_listens
                rule15_queue_pairs_may_go_between_polls
                rule18_many_connections_share_a_cq
            }
            shared {
                rule22_recvs_go_in_order_to_whoever_receives
                rule22_messages_of_many_clients_at_once
                rule22_an_empty_srq_costs_the_sender_alone
                rule22_a_queue_pair_that_fails_flushes_none_of_it
                rule22_what_a_drained_queue_pair_took_comes_back
                rule22_a_message_that_is_cut_off_keeps_no_recv
                rule22_too_long_costs_one_recv_and_one_queue_pair
                rule22_write_with_imm_takes_one
                rule22_it_is_bounded
                rule22_what_does_not_fit_is_refused
                rule22_one_that_nobody_uses_is_made_anew_or_stays
                rule22_others_keep_their_own
                rule22_it_goes_with_its_completion_queue
                rule22_a_device_without_one_says_so
            }
            windows {
                rule23_a_window_opens_its_region_to_its_peer
                rule23_other_queue_pairs_refuse_its_key
                rule23_an_unbound_window_opens_nothing
                rule23_an_ended_window_opens_nothing
                rule23_the_key_of_the_region_opens_nothing
                rule23_a_window_has_bounds_and_is_never_read
                rule23_a_wrong_bind_fails_its_queue_pair
                rule23_what_cannot_be_bound_is_refused
                rule23_a_window_ends_with_its_queue_pair
                rule23_windows_go_with_work_outstanding
                rule23_a_device_without_windows_says_so
            }
            seeds {
                s34_new_queue_pair_is_never_mistaken
                s39_recvs_are_independent_and_their_ids_free
                s43_unsignaled_keeps_slot
                s46_send_takes_the_head_of_the_rq
                s51_arming_is_idempotent
                s53_s69_an_event_says_only_look
                s54_poll_takes_at_most_what_was_asked
                s71_clearing_takes_all_events
                s62_a_send_queue_full_of_unsignaled_refuses
                s74_in_order_exactly_once
                s76_completions_of_each_queue_are_in_order
            }
        }
    };
    ($module:ident, $fixture:expr, $($file:ident { $($test:ident)* })*) => {
        mod $module {
            $($(
                #[test]
                fn $test() {
                    let _watchdog = crate::fixture::Watchdog::start(stringify!($test));
                    crate::$file::$test(&$fixture);
                }
            )*)*
        }
    };
}

conformance!(mem, crate::soft::Mem);
conformance!(shm, crate::soft::Shm);
conformance!(tcp, crate::soft::Tcp);
conformance!(faulty_mem, crate::soft::FaultyMem);
conformance!(as_mlx5, crate::soft::As(&rpc_transport::device::fault::MLX5));
conformance!(as_bnxt_re, crate::soft::As(&rpc_transport::device::fault::BNXT_RE));
conformance!(as_irdma, crate::soft::As(&rpc_transport::device::fault::IRDMA));
conformance!(as_mana, crate::soft::As(&rpc_transport::device::fault::MANA));
conformance!(toy_device, crate::toy::Toy);

/// The suite sees a device whose windows are open to every queue pair.
mod open_windows {
    use crate::fixture::{Fixture, Watchdog};
    use crate::soft::OpenWindows;
    use crate::windows;

    fn fails(test: fn(&dyn Fixture)) {
        let _watchdog = Watchdog::start("a device with open windows");
        let result = std::panic::catch_unwind(|| test(&OpenWindows));
        assert!(result.is_err(), "the test passes on a device that breaks the rule");
    }

    #[test]
    fn open_windows_fail_the_suite() {
        fails(windows::rule23_other_queue_pairs_refuse_its_key);
        fails(windows::rule23_an_unbound_window_opens_nothing);
        fails(windows::rule23_an_ended_window_opens_nothing);
        fails(windows::rule23_the_key_of_the_region_opens_nothing);
        fails(windows::rule23_a_window_ends_with_its_queue_pair);
    }
}

#[cfg(feature = "verbs")]
conformance!(rdma, crate::verbs::Verbs);
