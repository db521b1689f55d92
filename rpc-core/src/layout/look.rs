//! Looks at one type: all its runs, and what they have shown.

use std::any::type_name;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::DeserializeSeed;
use serde::ser::Serializer;

use super::read::At;
use super::trace::Trace;
use super::tree::{Id, LeftOut, Node, Tree, What};
use super::write::{Check, judge_variants};

/// What is known of a type. Texts come with the path that they are about.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) lines: Vec<String>,
    /// Why it cannot be sent.
    pub(super) refusals: Vec<(String, String)>,
    /// What could not be looked into.
    pub(super) unseen: Vec<(String, String)>,
    /// Fields that may be left out when they are written.
    pub(super) left_out: Vec<String>,
    /// There is a payload in it that can be read in place.
    pub(super) has_bulk: bool,
    /// All that was found.
    pub(super) tree: Tree,
}

/// How a `T` is written.
pub trait Writes<T>: Copy {
    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    fn write<S: Serializer>(self, value: &T, serializer: S) -> Result<S::Ok, S::Error>;
}

/// Looks at the type that `seed` reads and `shape` writes.
pub(super) fn look<S, H>(root: &str, seed: S, shape: H) -> Looked
where
    S: DeserializeSeed<'static> + Clone,
    H: Writes<S::Value>,
{
    let mut trace = Trace::new(root.to_owned());
    while trace.next_run() {
        let seed = seed.clone();
        let value = trace.part(Tree::ROOT, type_name::<S::Value>(), |trace| {
            seed.deserialize(At { trace, id: Tree::ROOT })
        });
        if let Ok(value) = value {
            // A type that cannot write this value may do so with others; a panic is no more than
            // that.
            let check = AssertUnwindSafe(|| {
                let check = Check { trace: &mut trace, id: Tree::ROOT };
                shape.write(&value, check).is_ok()
            });
            let _ = catch_unwind(check);
        }
    }
    judge_variants(&mut trace);
    looked(trace)
}

fn looked(trace: Trace) -> Looked {
    let tree = &trace.tree;
    let twice = |id: Id| tree.names(id).and_then(|names| names.twice);
    // Other differences come of it.
    let problems = trace.problems.iter().filter(|problem| twice(problem.at).is_none());
    let problems = problems.map(|problem| (problem.at, problem.text.clone()));
    let refusals = problems.chain(tree.all().filter_map(|(id, node)| {
        if let Some(name) = twice(id) {
            let text = format!(
                "serde's `alias` gives one of its parts the name `{name}`, which another one has; \
                 remove the alias"
            );
            return Some((id, text));
        }
        let text = match node.what {
            What::Anything(cause) => cause.text(),
            _ => not_to_be_left_out(node)?,
        };
        Some((id, text.to_owned()))
    }));
    let refusals = refusals.map(|(id, text)| {
        let type_name = tree.type_name(id);
        // A name with `::__` was written by a macro, between a type and its part.
        let text = match type_name.is_empty() || type_name.contains("::__") {
            true => format!("cannot be sent: {text}"),
            false => format!("(`{type_name}`) cannot be sent: {text}"),
        };
        (tree.path(id), text)
    });
    let may_be_left_out = |(id, node): (Id, &Node)| {
        let is_fine = node.left_out.zero && not_to_be_left_out(node).is_none();
        let (parent, at) = tree.parent(id).filter(|_| is_fine)?;
        Some(tree.names(parent)?.name(at))
    };
    let unseen = tree.all().filter_map(|(id, node)| Some((tree.path(id), unseen(tree, id, node)?)));
    let cut = tree.is_cut.then(|| {
        (tree.path(Tree::ROOT), "has too many parts; not all of them are compared".to_owned())
    });
    let (refusals, unseen) = (refusals.collect(), unseen.chain(cut).collect());
    let left_out = tree.all().filter_map(may_be_left_out).collect();
    let lines = tree.lines();
    Looked { lines, refusals, unseen, left_out, has_bulk: trace.has_bulk, tree: trace.tree }
}

/// Why a field must not be left out, if it is and must not.
fn not_to_be_left_out(node: &Node) -> Option<&'static str> {
    let LeftOut { zero, other, default } = node.left_out;
    if other || (default && !zero) {
        return Some(
            "serde's `skip_serializing_if` omits a value other than `None`, empty, 0 or false, \
             which the reader cannot restore: remove the attribute",
        );
    }
    let has_one_byte = match node.what {
        What::Leaf(name) => !matches!(name, "f32" | "f64" | "nothing"),
        What::Option | What::Sequence | What::Map | What::Enum(_) => true,
        _ => false,
    };
    (zero && !has_one_byte).then_some(
        "serde's `skip_serializing_if` omits it, which only works for an option, a list, a map, a \
         string, an integer, a bool, or an enum whose first variant is omitted; remove the \
         attribute",
    )
}

/// What could not be looked into because of a part that takes no value.
fn unseen(tree: &Tree, id: Id, node: &Node) -> Option<String> {
    let is_asked = !matches!(node.what, What::Unseen | What::Anything(_));
    let is_innermost = || (0..tree.parts_len(id)).all(|at| !tree.is_dead(tree.part(id, at)));
    let (parent, at) = tree.parent(id)?;
    if !node.is_dead || !is_asked || !is_innermost() {
        return None;
    }
    let around = tree.get(parent)?;
    let hides_others = match around.what {
        What::Tuple(_) | What::Struct(_) | What::Map => {
            (at + 1..tree.parts_len(parent)).any(|other| tree.part(parent, other).is_none())
        }
        _ => false,
    };
    if hides_others {
        return Some("rejects made-up values; the parts after it are not compared".to_owned());
    }
    let is_product = matches!(around.what, What::Tuple(_) | What::Struct(_));
    (is_product && !around.is_written).then(|| {
        "rejects made-up values; `Serialize` and `Deserialize` of the enclosing type are not \
         compared"
            .to_owned()
    })
}
