//! What has changed between the services of two servers, and which clients can call which server.
//!
//! A client is built from the types of the server of its age. An old client calls the old server,
//! and a new client the new server, without a difference. So two pairs are judged for each changed
//! method: an old client at the new server, and a new client at the old server.
//!
//! Rules, as calls follow them:
//!
//! - Equal types need nothing. Aliases and defaults are no part of them.
//! - Other types are read by a [`Plan`]: the server reads the arguments and their items, and the
//!   client reads items, the result and errors.
//! - Another kind of call or another version fits nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::exchange::{self, MAX_PLAN_BYTES, MAX_SCHEMA_BYTES, MethodTypes, version};
use crate::plan::{Plan, Problem, UNKNOWN_VARIANT};
use crate::schema::{Absent, Id, Root, Schema, Type};
use crate::services::{Method, Services};

/// What an end keeps besides the plans, at most, bytes.
const KEPT_BYTES: usize = 1 << 10;
/// Maximum number of types in a schema that is made minimal: this takes up to their square.
const MAX_MINIMAL: usize = 1 << 12;

/// What has happened to a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum What {
    /// Only the new server has it.
    Added,
    /// Only the old server has it.
    Removed,
    /// Both have it, and something about it differs.
    Changed,
}

impl What {
    /// Its name in texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
        }
    }
}

/// How calls of a client of one age fare at a server of the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// What breaks calls: all of them, or those with a variant whose contents do not fit.
    pub problems: Vec<Problem>,
    /// What ends single calls, and is no break: uses of what the other end lacks.
    pub notes: Vec<Problem>,
}

impl Outcome {
    /// Whether nothing breaks.
    #[must_use]
    pub fn works(&self) -> bool {
        self.problems.is_empty()
    }

    fn broken(what: impl Into<String>) -> Self {
        let problem = Problem { path: String::new(), what: what.into() };
        Self { problems: vec![problem], notes: Vec::new() }
    }
}

/// A change of a method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// `Service.method`.
    pub method: String,
    /// What has happened to it.
    pub what: What,
    /// A client of before the change, at a server of after it.
    pub old_client: Outcome,
    /// A client of after the change, at a server of before it.
    pub new_client: Outcome,
}

impl Change {
    /// Whether one of the pairs breaks.
    #[must_use]
    pub fn is_break(&self) -> bool {
        !self.old_client.works() || !self.new_client.works()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.what.name(), self.method)?;
        let pairs = [
            ("old client, new server", &self.old_client),
            ("new client, old server", &self.new_client),
        ];
        for (pair, Outcome { problems, notes }) in pairs {
            writeln!(f, "  {pair}: {}", if problems.is_empty() { "works" } else { "BREAKS" })?;
            problems.iter().try_for_each(|it| writeln!(f, "    {it}"))?;
            notes.iter().try_for_each(|it| writeln!(f, "    note: {it}"))?;
        }
        Ok(())
    }
}

/// All changes of methods, sorted by their names.
#[must_use]
pub fn changes(old: &Services, new: &Services) -> Vec<Change> {
    let old: BTreeMap<String, &Method> = old.methods().collect();
    let new: BTreeMap<String, &Method> = new.methods().collect();
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let change = |name: &String| {
        let (what, old_client, new_client) = match (old.get(name), new.get(name)) {
            (Some(old), Some(new)) if old == new => return None,
            (Some(old), Some(new)) => (What::Changed, pair(old, new), pair(new, old)),
            (Some(_), None) => {
                let lacks = Outcome::broken("the new server lacks this method (Unimplemented)");
                (What::Removed, lacks, Outcome::default())
            }
            (None, _) => {
                let what = "the old server lacks this method (Unimplemented): update servers first";
                let note = Problem { path: String::new(), what: what.to_owned() };
                let notes = Outcome { problems: Vec::new(), notes: vec![note] };
                (What::Added, Outcome::default(), notes)
            }
        };
        Some(Change { method: name.clone(), what, old_client, new_client })
    };
    names.into_iter().filter_map(change).collect()
}

/// How calls of a client with these types fare at a server with those.
fn pair(client: &Method, server: &Method) -> Outcome {
    if client.kind != server.kind {
        let (client, server) = (client.kind.name(), server.kind.name());
        return Outcome::broken(format!(
            "the kind of call is `{client}` at the client and `{server}` at the server"
        ));
    }
    let [clients, servers] = [client, server].map(|it| version(&it.signature));
    if clients != servers {
        let shown = |version: Option<&str>| version.unwrap_or("none").to_owned();
        return Outcome::broken(format!(
            "`#[rpc(version)]` is {} at the client and {} at the server",
            shown(clients),
            shown(servers)
        ));
    }
    let has_types = |it: &Method| !it.schema.types().is_empty();
    let is_described = has_types(client) && has_types(server);
    let has_equal_types = plain(&client.schema) == plain(&server.schema);
    let has_equal_names = client.signature == server.signature;
    if has_equal_types && (has_equal_names || is_described) {
        return Outcome::default();
    }
    if !is_described {
        return Outcome::broken("its types are not described, so they must be equal");
    }
    for (end, method) in [("client", client), ("server", server)] {
        let bytes = exchange::text(&method.schema, &method.signature).len();
        if bytes > MAX_SCHEMA_BYTES {
            return Outcome::broken(format!(
                "its types differ, and the schema of the {end} has {bytes} bytes: ends exchange \
                 at most {MAX_SCHEMA_BYTES}"
            ));
        }
    }
    resolved(&client.schema, &server.schema)
}

fn resolved(client: &Schema, server: &Schema) -> Outcome {
    let mut outcome = Outcome::default();
    // The memory of the plans of each end.
    let (mut at_client, mut at_server) = (KEPT_BYTES, KEPT_BYTES);
    match [client, server].map(|it| MethodTypes::new(it.clone())) {
        [Ok(of_client), Ok(of_server)] => {
            let (written, read) = (of_client.arguments, of_server.arguments);
            let plan = Plan::of_arguments(&of_client.schema, written, &of_server.schema, read);
            at_server += client.to_string().len() + outcome.add("", plan);
            at_client += server.to_string().len();
        }
        [Err(flaw), _] | [_, Err(flaw)] => {
            return Outcome::broken(format!("its arguments cannot be read by name: {flaw}"));
        }
    }
    // Who writes, who reads.
    let values = [
        (Root::SentItem, (client, "client"), server),
        (Root::Item, (server, "server"), client),
        (Root::Result, (server, "server"), client),
    ];
    for (root, (writer, name), reader) in values {
        match (writer.root(&root), reader.root(&root)) {
            (_, None) => {}
            (None, Some(_)) => {
                let text = format!("the {name} does not describe its {}", root.name());
                outcome.problems.extend(Outcome::broken(text).problems);
            }
            (Some(written), Some(read)) => {
                let bytes = outcome.add(root.name(), Plan::new(writer, written, reader, read));
                let at_reader =
                    if root == Root::SentItem { &mut at_server } else { &mut at_client };
                *at_reader += bytes;
            }
        }
    }
    for error in [Root::Error, Root::Refusal] {
        match (server.root(&error), client.root(&error)) {
            (Some(written), Some(read)) => {
                match Plan::new(server, written, client, read) {
                    // An error that cannot be read is still an error.
                    Err(problems) => outcome.notes.extend(problems.into_iter().map(|it| Problem {
                        path: format!("{}{}", error.name(), it.path),
                        what: format!("{}; it arrives as a `Status` of code `Unknown`", it.what),
                    })),
                    plan => at_client += outcome.add(error.name(), plan),
                }
            }
            (Some(_), None) => outcome.notes.push(Problem {
                path: error.name().to_owned(),
                what: "the client has no such type; it arrives as a `Status` of code `Unknown`"
                    .to_owned(),
            }),
            (None, _) => {}
        }
    }
    for (end, bytes) in [("client", at_client), ("server", at_server)] {
        if outcome.works() && bytes > MAX_PLAN_BYTES {
            return Outcome::broken(format!(
                "its types differ, and are too large to be converted: that takes {bytes} bytes at \
                 the {end}, and the limit is {MAX_PLAN_BYTES}"
            ));
        }
    }
    outcome
}

impl Outcome {
    /// Gives the memory of the plan, bytes.
    fn add(&mut self, root: &str, plan: Result<Plan, Vec<Problem>>) -> usize {
        let at = |path: &str, what: String| Problem { path: format!("{root}{path}"), what };
        let plan = match plan {
            Ok(plan) => plan,
            Err(problems) if problems.is_empty() => {
                self.problems.push(at("", "it cannot be read here".to_owned()));
                return 0;
            }
            Err(problems) => {
                self.problems.extend(problems.into_iter().map(|it| at(&it.path, it.what)));
                return 0;
            }
        };
        for Problem { path, what } in plan.partial() {
            let is_note = what == UNKNOWN_VARIANT;
            let problem = at(path, what.clone());
            if is_note { &mut self.notes } else { &mut self.problems }.push(problem);
        }
        for field in plan.unsure() {
            let what = format!(
                "the writer has no field `{field}`, and whether it has a default here is not \
                 known: without one, values with this part are refused"
            );
            self.notes.push(at("", what));
        }
        plan.bytes()
    }
}

/// What decides whether ends need no plan: main names and the kinds of values. Arguments have names
/// if several have one type.
fn plain(schema: &Schema) -> Schema {
    let (mut types, mut roots) = schema.clone().into_parts();
    for it in &mut types {
        match it {
            Type::Struct { fields, denies_unknown } => {
                *denies_unknown = false;
                for field in fields {
                    field.aliases.clear();
                    field.absent = Absent::Unknown;
                }
            }
            Type::Enum { variants, other } => {
                *other = None;
                variants.iter_mut().for_each(|variant| variant.aliases.clear());
            }
            Type::Set(item) => *it = Type::Sequence(*item),
            _ => {}
        }
    }
    let arguments: Vec<Id> = schema.arguments().map(|(_, id)| id).collect();
    let distinct: BTreeSet<Id> = arguments.iter().copied().collect();
    for (root, _) in &mut roots {
        if let Root::Argument { name, absent } = root {
            *absent = Absent::Unknown;
            if distinct.len() == arguments.len() {
                name.clear();
            }
        }
    }
    let is_small = types.len() <= MAX_MINIMAL;
    // Nothing was added that could be a flaw.
    let schema = Schema::new(types, roots).unwrap_or_default();
    if is_small { schema.minimal() } else { schema }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Kind;

    fn services(kind: Kind, signature: &str, schema: &str) -> Services {
        let mut services = Services::default();
        let schema = crate::text::parse(schema).unwrap();
        let method = Method { kind, signature: signature.to_owned(), schema };
        services.add("Stock", "store", method).unwrap();
        services
    }

    fn one(old: &Services, new: &Services) -> Change {
        let mut all = changes(old, new);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// The change of a unary method whose argument and result are changed so.
    fn change(old: &str, new: &str) -> Change {
        let [old, new] = [old, new].map(|it| {
            services(Kind::Unary, "(Item)", &format!("argument item: #0\nresult: #0\n{it}"))
        });
        one(&old, &new)
    }

    /// Both ends read: a problem of one reader is one of the arguments in one pair, and one of the
    /// result in the other.
    #[track_caller]
    fn assert_outcome(outcome: &Outcome, problems: &[&str], notes: &[&str]) {
        let texts = |all: &[Problem]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&outcome.problems), problems);
        assert_eq!(texts(&outcome.notes), notes);
    }

    const OLD: &str = "#0 struct { id: #1 }\n#1 u32\n";

    #[test]
    fn a_field_with_default_works_both_ways() {
        let change = change(OLD, "#0 struct { id: #1, size?: #1 }\n#1 u32\n");
        assert!(!change.is_break() && change.what == What::Changed, "{change}");
    }

    #[test]
    fn a_field_without_default_is_named() {
        let new = "#0 struct { id: #1, size: #1 }\n#1 u32\n";
        let lacks = "the writer has no field `size`: give it `#[serde(default)]`";
        let added = change(OLD, new);
        assert_outcome(&added.old_client, &[&format!("`item`: {lacks}")], &[]);
        assert_outcome(&added.new_client, &[&format!("`result`: {lacks}")], &[]);
        // The other end is the one that needs it.
        let removed = change(new, OLD);
        assert_outcome(&removed.old_client, &[&format!("`result`: {lacks}")], &[]);
        assert_outcome(&removed.new_client, &[&format!("`item`: {lacks}")], &[]);
        let text = removed.to_string();
        assert!(
            text.starts_with("changed Stock.store\n  old client, new server: BREAKS\n"),
            "{text}"
        );
    }

    #[test]
    fn a_renamed_field_needs_its_alias() {
        let new = "#0 struct { number | id: #1 }\n#1 u32\n";
        assert!(!change(OLD, new).is_break());
        assert!(change(OLD, &new.replace(" | id", "")).is_break());
    }

    #[test]
    fn an_added_variant_is_a_note() {
        let old = "#0 enum { A: #1 }\n#1 nothing\n";
        let change = change(old, "#0 enum { A: #1, B: #1 }\n#1 nothing\n");
        assert_outcome(&change.old_client, &[], &[&format!("`result::B`: {UNKNOWN_VARIANT}")]);
        assert_outcome(&change.new_client, &[], &[&format!("`item::B`: {UNKNOWN_VARIANT}")]);
    }

    #[test]
    fn misfitting_contents_of_a_variant_break() {
        let old = "#0 enum { A: #1, B: #2 }\n#1 nothing\n#2 u8\n";
        let change = change(old, "#0 enum { A: #1, B: #2 }\n#1 nothing\n#2 str\n");
        assert!(!change.old_client.works() && !change.new_client.works(), "{change}");
        assert_eq!(change.old_client.problems[0].path, ".item::B");
    }

    #[test]
    fn integers_of_other_widths_work() {
        assert!(!change(OLD, "#0 struct { id: #1 }\n#1 u64\n").is_break());
        assert!(change(OLD, "#0 struct { id: #1 }\n#1 f64\n").is_break());
    }

    #[test]
    fn an_argument_is_added_as_an_option() {
        let unary = |schema: &str| services(Kind::Unary, "()", schema);
        let old = unary("argument a: #0\n#0 u8\n");
        let new = unary("argument a: #0\nargument b?: #1\n#0 u8\n#1 option #0\n");
        assert!(!one(&old, &new).is_break());
        let new = unary("argument a: #0\nargument b: #1\n#0 u8\n#1 str\n");
        let change = one(&old, &new);
        assert!(!change.old_client.works() && change.new_client.works(), "{change}");
    }

    #[test]
    fn only_a_removed_method_breaks() {
        let old = services(Kind::Unary, "()", "");
        let removed = one(&old, &Services::default());
        assert!(removed.what == What::Removed && !removed.old_client.works());
        assert!(removed.new_client.works());
        let added = one(&Services::default(), &old);
        assert!(
            added.what == What::Added && !added.is_break() && added.new_client.notes.len() == 1
        );
        assert_eq!(changes(&old, &old), []);
    }

    #[test]
    fn each_end_reads_the_items_of_the_other() {
        let stream = |kind, signature: &str, schema: String| services(kind, signature, &schema);
        let types = |root: &str, fields: &str| {
            format!("{root}: #0\n#0 struct {{ {fields} }}\n#1 u32\n#2 str\n")
        };
        let lacks = "the writer has no field `size`: give it `#[serde(default)]`";
        let (items, sent) = ("() -> stream Item", "(stream Item) -> ()");
        for (kind, signature, root) in
            [(Kind::Items, items, "item"), (Kind::SentItems, sent, "sent item")]
        {
            let old = stream(kind, signature, types(root, "id: #1, name: #2"));
            let new = stream(kind, signature, types(root, "id: #1, name: #2, size?: #1"));
            assert!(!one(&old, &new).is_break());
            let new = stream(kind, signature, types(root, "id: #1, name: #2, size: #1"));
            let change = one(&old, &new);
            let (breaks, works) = match kind {
                Kind::Items => (&change.new_client, &change.old_client),
                _ => (&change.old_client, &change.new_client),
            };
            assert!(works.works(), "{change}");
            assert_outcome(breaks, &[&format!("`{root}`: {lacks}")], &[]);
        }
        // Names of types do not count.
        let old = stream(Kind::Items, "() -> stream Item", types("item", "id: #1, name: #2"));
        let new = stream(Kind::Items, "() -> stream Thing", types("item", "id: #1, name: #2"));
        assert!(!one(&old, &new).is_break());
    }

    #[test]
    fn kinds_and_versions_have_to_be_equal() {
        let types = "argument a: #0\n#0 u32\n";
        let unary = |signature: &str| services(Kind::Unary, signature, types);
        assert!(!one(&unary("(A) -> ()"), &unary("(B) -> ()")).is_break());
        let change = one(&unary("(A) -> ()"), &unary("(A) -> () #2"));
        assert!(change.to_string().contains("is none at the client and 2 at the server"));
        let stream = services(Kind::Items, "(A) -> ()", types);
        assert!(
            one(&unary("(A) -> ()"), &stream).to_string().contains("the kind of call is `unary`")
        );
    }

    #[test]
    fn undescribed_and_too_large_types_break() {
        let undescribed = |signature: &str| services(Kind::Unary, signature, "");
        let change = one(&undescribed("(A)"), &undescribed("(B)"));
        assert!(change.to_string().contains("its types are not described"), "{change}");
        let fields: Vec<_> = (0..2000).map(|at| format!("field{at}: #1")).collect();
        let large = format!("#0 struct {{ {} }}\n#1 u32\n", fields.join(", "));
        let change = self::change(OLD, &large).to_string();
        assert!(change.contains("ends exchange at most 16384"), "{change}");
    }

    /// Regression: the line with the version was not counted.
    #[test]
    fn bounds_are_those_of_calls() {
        let fields = |count: usize, last: &str| {
            let fields: Vec<_> = (0..count).map(|at| format!("field{at}?: #1")).collect();
            format!("#0 struct {{ {}, {last}?: #1 }}\n#1 u32\n", fields.join(", "))
        };
        let whole = |last: &str| format!("argument a: #0\n{}", fields(1000, last));
        let room = MAX_SCHEMA_BYTES - whole("").len();
        let fits = "x".repeat(room);
        let unary = |signature: &str, last: &str| services(Kind::Unary, signature, &whole(last));
        let small =
            |signature: &str| services(Kind::Unary, signature, "argument a: #0\n#0 struct { }\n");
        assert!(!one(&small("(A)"), &unary("(A)", &fits)).is_break());
        let change = one(&small("(A) #1"), &unary("(A) #1", &fits));
        assert!(change.to_string().contains("has 16394 bytes"), "{change}");
        // Small schemas, whose plan is not.
        let change = self::change(&cycle(50), &cycle(51)).to_string();
        assert!(change.contains("too large to be converted: that takes"), "{change}");
    }

    /// So many structs, each within the one before and the first within the last. Those of two
    /// lengths meet each other in all pairs.
    fn cycle(count: usize) -> String {
        let one = |at: usize| {
            let kind = if at == 0 { "u16" } else { "u8" };
            let [ty, option, int] = [0, 1, 2].map(|part| 3 * at + part);
            let next = 3 * ((at + 1) % count);
            format!(
                "#{ty} struct {{ v: #{int}, n: #{option} }}\n#{option} option #{next}\n#{int} {kind}\n"
            )
        };
        (0..count).map(one).collect()
    }

    /// Regression: nothing was listed, and that was taken for a change that works.
    #[test]
    fn a_break_at_a_long_path_is_one() {
        let deep = |leaf: &str| {
            let name = "n".repeat(32);
            let all = (0..40).map(|at| format!("#{at} struct {{ {name}: #{} }}\n", at + 1));
            all.collect::<String>() + &format!("#40 {leaf}\n")
        };
        let change = change(&deep("u32"), &deep("str"));
        for outcome in [&change.old_client, &change.new_client] {
            let [problem, ..] = &outcome.problems[..] else { panic!("{change}") };
            assert!(problem.path.ends_with("..") && problem.path.len() < 1100, "{change}");
            assert!(problem.what.starts_with("it is `"), "{change}");
        }
        let change = self::change(&cycle(100), &cycle(101));
        assert!(change.is_break(), "{change}");
        assert!(change.to_string().contains("its types are too large to be compared"), "{change}");
    }

    #[test]
    fn a_default_that_is_not_known_is_noted() {
        let change = change(OLD, "#0 struct { id: #1, size~: #1 }\n#1 u32\n");
        let note = |root: &str| {
            format!(
                "`{root}`: the writer has no field `size`, and whether it has a default here is \
                 not known: without one, values with this part are refused"
            )
        };
        assert!(!change.is_break());
        assert_outcome(&change.new_client, &[], &[&note("result")]);
        let text = change.old_client.notes[0].to_string();
        assert!(text.contains("`size`") && change.old_client.notes.len() == 1, "{text}");
    }

    #[test]
    fn sets_and_lists_have_the_same_bytes() {
        let set = "#0 struct { id: #1, of: #2 }\n#1 u32\n#2 set #1\n";
        let both = change(set, &set.replace("set #1", "sequence #1"));
        assert_eq!(both.to_string().matches("works").count(), 2, "{both}");
    }

    #[test]
    fn an_error_is_read_or_becomes_a_status() {
        let unary = |schema: &str| services(Kind::Unary, "()", schema);
        let old = unary("result: #0\nerror: #0\n#0 u8\n");
        let new = unary("result: #0\nerror: #1\n#0 u8\n#1 str\n");
        let change = one(&old, &new);
        assert!(!change.is_break() && change.old_client.notes.len() == 1, "{change}");
        let change = one(&unary("result: #0\n#0 u8\n"), &new);
        assert!(!change.is_break() && change.old_client.notes.len() == 1, "{change}");
    }
}
