//! Services in a crate that forbids every lint: the test is that this compiles.
//!
//! An `allow` in generated code would be refused here, whether or not its lint is triggered, and a
//! lint that generated code triggers is an error.

#![forbid(aarch64_softfloat_neon, absolute_paths_not_starting_with_crate)]
#![forbid(ambiguous_derive_helpers, ambiguous_glob_imported_traits, ambiguous_glob_imports)]
#![forbid(ambiguous_glob_reexports, ambiguous_import_visibilities, ambiguous_negative_literals)]
#![forbid(ambiguous_panic_imports, ambiguous_wide_pointer_comparisons, anonymous_parameters)]
#![forbid(array_into_iter, asm_sub_register, async_fn_in_trait, bad_asm_style)]
#![forbid(bare_trait_objects, boxed_slice_into_iter, break_with_label_and_loop)]
#![forbid(clashing_extern_declarations, closure_returning_async_block, coherence_leak_check)]
#![forbid(confusable_idents, const_evaluatable_unchecked, const_item_interior_mutations)]
#![forbid(const_item_mutation, dangling_pointers_from_locals)]
#![forbid(dangling_pointers_from_temporaries, dead_code, deprecated, deprecated_in_future)]
#![forbid(deprecated_safe_2024, deprecated_where_clause_location, double_negations, drop_bounds)]
#![forbid(dropping_copy_types, dropping_references, duplicate_macro_attributes, dyn_drop)]
#![forbid(edition_2024_expr_fragment_specifier, elided_lifetimes_in_paths)]
#![forbid(ellipsis_inclusive_range_patterns, explicit_outlives_requirements)]
#![forbid(exported_private_dependencies, ffi_unwind_calls, for_loops_over_fallibles)]
#![forbid(forbidden_lint_groups, forgetting_copy_types, forgetting_references)]
#![forbid(function_casts_as_integer, function_item_references, hidden_glob_reexports)]
#![forbid(if_let_rescope, impl_trait_overcaptures, impl_trait_redundant_captures)]
#![forbid(improper_ctypes, improper_ctypes_definitions, improper_gpu_kernel_arg)]
#![forbid(incomplete_features, inline_always_mismatching_target_features, inline_no_sanitize)]
#![forbid(integer_to_ptr_transmutes, internal_eq_trait_method_impls, internal_features)]
#![forbid(invalid_doc_attributes, invalid_from_utf8, invalid_nan_comparisons, invalid_value)]
#![forbid(irrefutable_let_patterns, keyword_idents_2018, keyword_idents_2024, large_assignments)]
#![forbid(late_bound_lifetime_arguments, let_underscore_drop, linker_messages)]
#![forbid(macro_use_extern_crate, malformed_diagnostic_attributes)]
#![forbid(malformed_diagnostic_format_literals, map_unit_fn, meta_variable_misuse)]
#![forbid(mismatched_lifetime_syntaxes, misplaced_diagnostic_attributes, missing_abi)]
#![forbid(missing_copy_implementations, missing_debug_implementations, missing_docs)]
#![forbid(missing_gpu_kernel_export_name, missing_unsafe_on_extern, mixed_script_confusables)]
#![forbid(named_arguments_used_positionally, no_mangle_generic_items, non_ascii_idents)]
#![forbid(non_contiguous_range_endpoints, non_fmt_panics, non_local_definitions)]
#![forbid(non_shorthand_field_patterns, non_snake_case, noop_method_call)]
#![forbid(opaque_hidden_inferred_bound, overlapping_range_endpoints, path_statements)]
#![forbid(private_bounds, private_interfaces, ptr_to_integer_transmute_in_consts)]
#![forbid(redundant_imports, redundant_lifetimes, redundant_semicolons)]
#![forbid(refining_impl_trait_internal, refining_impl_trait_reachable)]
#![forbid(repr_c_enums_larger_than_int, rtsan_nonblocking_async)]
#![forbid(rust_2021_incompatible_closure_captures, rust_2021_incompatible_or_patterns)]
#![forbid(rust_2021_prefixes_incompatible_syntax, rust_2021_prelude_collisions)]
#![forbid(rust_2024_guarded_string_incompatible_syntax, rust_2024_incompatible_pat)]
#![forbid(rust_2024_prelude_collisions, self_constructor_from_outer_item, single_use_lifetimes)]
#![forbid(special_module_name, stable_features, static_mut_refs, suspicious_double_ref_op)]
#![forbid(tail_expr_drop_order, trivial_bounds, trivial_casts, trivial_numeric_casts)]
#![forbid(type_alias_bounds, tyvar_behind_raw_pointer, uncommon_codepoints)]
#![forbid(unconditional_recursion, uncovered_param_in_projection, unexpected_cfgs)]
#![forbid(unfulfilled_lint_expectations, ungated_async_fn_track_caller, uninhabited_static)]
#![forbid(unit_bindings, unknown_diagnostic_attributes, unnameable_test_items, unnameable_types)]
#![forbid(unnecessary_transmutes, unpredictable_function_pointer_comparisons)]
#![forbid(unreachable_cfg_select_predicates, unreachable_code, unreachable_patterns)]
#![forbid(unreachable_pub, unsafe_attr_outside_unsafe, unsafe_code, unsafe_op_in_unsafe_fn)]
#![forbid(unstable_features, unstable_name_collisions, unstable_syntax_pre_expansion)]
#![forbid(unsupported_calling_conventions, unused_allocation, unused_assignments)]
#![forbid(unused_associated_type_bounds, unused_braces, unused_comparisons, unused_doc_comments)]
#![forbid(unused_features, unused_import_braces, unused_imports, unused_labels)]
#![forbid(unused_lifetimes, unused_macro_rules, unused_macros, unused_must_use, unused_mut)]
#![forbid(unused_parens, unused_results, unused_unsafe, unused_variables, unused_visibilities)]
#![forbid(useless_ptr_null_checks, uses_power_alignment, varargs_without_pattern)]
#![forbid(variant_size_differences, while_true)]

/// Types that only services use. The modules below forbid the lints that serde's derives allow.
mod types {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Row(u32);

    #[derive(Debug, Serialize, Deserialize)]
    pub(crate) struct Lent<'a>(&'a str);

    #[derive(Debug, Serialize, Deserialize)]
    pub(crate) enum Refusal {
        Full { rows: u64 },
    }

    pub(crate) type Outcome = Result<Vec<u8>, Refusal>;
}

/// The services.
#[forbid(non_camel_case_types, non_upper_case_globals, unknown_lints, unused_qualifications)]
#[forbid(renamed_and_removed_lints, unused_attributes, unused_extern_crates)]
#[forbid(clippy::all, clippy::pedantic, clippy::nursery, clippy::unwrap_used, clippy::expect_used)]
#[forbid(clippy::panic, clippy::indexing_slicing, clippy::shadow_unrelated, clippy::absolute_paths)]
#[forbid(
    clippy::missing_docs_in_private_items,
    clippy::multiple_inherent_impl,
    clippy::as_conversions
)]
#[forbid(clippy::min_ident_chars, clippy::implicit_return, clippy::pattern_type_mismatch)]
#[forbid(clippy::missing_inline_in_public_items, clippy::single_call_fn, clippy::shadow_reuse)]
pub mod services {
    /// Used nowhere.
    mod unused {
        use std::borrow::Cow;

        use rpc_core::CallError;
        use rpc_core::stream::{Producer, Stream, Streaming};

        use crate::types::{Lent, Outcome, Refusal, Row};

        #[rpc_core::service(client_trait = TableCalls)]
        trait Table {
            async fn get(&self, key: &str, at: u64) -> Option<Row>;
            async fn put(
                &self,
                rows: &[Row],
                text: Cow<'_, str>,
                lent: Lent<'_>,
            ) -> Result<u64, Refusal>;
            async fn chain(&self, bytes: &[u8]) -> Result<Row, CallError<Refusal>>;
            #[rpc(result, idempotent)]
            async fn alias(&self, pair: (u8, Vec<u8>)) -> Outcome;
            async fn borrowed(&self, row: &Row) -> Cow<'_, str>;
            async fn default(&self, number: u8) -> u8 {
                number
            }
            async fn nothing(&self);
            fn list(&self, prefix: &str) -> impl Stream<Item = Result<Row, Refusal>>;
            async fn watch(&self) -> Result<impl Stream<Item = Row>, CallError<Refusal>>;
            fn count(
                &self,
                rows: Streaming<Row>,
            ) -> impl Producer<Item = u8, Output = Result<u64, Refusal>>;
            async fn sum(&self, rows: Streaming<u32>) -> u64;
        }
    }

    /// Seen by others, with nothing but a client.
    pub mod seen {
        /// Documented.
        #[rpc_core::service(blocking_client = false)]
        pub trait Kv {
            /// Documented.
            async fn get(&self, key: &str) -> u8;
        }
    }

    /// Of another visibility.
    mod restricted {
        /// Documented.
        #[rpc_core::service(client_trait = RestrictedCalls)]
        pub(in crate::services) trait Restricted {
            /// Documented.
            async fn get(&self, key: &str) -> u8;
        }
    }

    /// The path of the crate, as the user writes it.
    mod named {
        /// Documented.
        #[rpc_core::service(crate = rpc_core)]
        pub(crate) trait Kv {
            /// Documented.
            #[must_use]
            async fn get(&self, key: &str) -> u8;
        }
    }
}
