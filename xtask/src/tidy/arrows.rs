//! Which crate may know which: dependencies point down only. `ARCHITECTURE.md` draws it.

use super::Finding;
use crate::workspace::Package;

/// Each package and the workspace packages that it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("megapipe-stack", &[]),
    ("megapipe-shm", &[]),
    ("megapipe-link", &["megapipe-shm"]),
    ("megapipe-service", &["megapipe-stack", "megapipe-shm", "megapipe-link"]),
    ("megapipe-policy", &["megapipe-service"]),
    (
        "megapipe-sim",
        &["megapipe", "megapipe-link", "megapipe-service", "megapipe-sockets", "megapipe-stack"],
    ),
    ("megapipe-scripts", &["megapipe", "megapipe-link", "megapipe-sockets", "megapipe-stack"]),
    ("megapipe", &["megapipe-shm", "megapipe-stack", "megapipe-link", "megapipe-service"]),
    ("megapipe-sockets", &["megapipe", "megapipe-link", "megapipe-shm"]),
    ("megapipe-examples", &["megapipe"]),
    (
        "megapipe-packetdrill",
        &["megapipe", "megapipe-marshal", "megapipe-scripts", "megapipe-sockets"],
    ),
    ("megapipe-marshal", &["megapipe", "megapipe-sockets"]),
    ("megapipe-preload", &["megapipe", "megapipe-marshal", "megapipe-sockets"]),
    ("megapipe-capi", &["megapipe", "megapipe-marshal", "megapipe-sockets"]),
    ("megapipe-apps", &["megapipe", "megapipe-shm", "megapipe-sockets"]),
    (
        "megapipe-bench",
        &[
            "megapipe",
            "megapipe-apps",
            "megapipe-link",
            "megapipe-service",
            "megapipe-shm",
            "megapipe-stack",
        ],
    ),
    (
        "megapipe-cli",
        &[
            "megapipe",
            "megapipe-apps",
            "megapipe-bench",
            "megapipe-policy",
            "megapipe-preload",
            "megapipe-scripts",
            "megapipe-service",
            "megapipe-sim",
        ],
    ),
    (
        "megapipe-tests",
        &[
            "megapipe",
            "megapipe-apps",
            "megapipe-bench",
            "megapipe-link",
            "megapipe-preload",
            "megapipe-service",
            "megapipe-stack",
        ],
    ),
    ("xtask", &[]),
];

/// Dependencies that the picture does not have, and packages that it does not know.
pub(super) fn pointing_up(packages: &[Package]) -> Vec<Finding> {
    packages
        .iter()
        .flat_map(|package| {
            let name = &package.name;
            let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| known == name) else {
                let text = format!("package {name} has no place in the picture of crates");
                return vec![Finding::new("Cargo.toml", 0, text)];
            };
            let up = package.depends_on.iter().filter(|other| !allowed.contains(&other.as_str()));
            up.map(|other| {
                let text = format!("{name} must not depend on {other}: arrows point down only");
                Finding::new("Cargo.toml", 0, text)
            })
            .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, depends_on: &[&str]) -> Package {
        let depends_on = depends_on.iter().map(|name| (*name).to_owned()).collect();
        Package { name: name.to_owned(), depends_on, ..Package::default() }
    }

    #[test]
    fn the_picture_passes() {
        let good = [package("megapipe", &[]), package("megapipe-apps", &["megapipe"])];
        assert_eq!(pointing_up(&good), []);
    }

    #[test]
    fn an_arrow_that_points_up_is_found() {
        let found = pointing_up(&[package("megapipe", &["megapipe-apps"])]);
        assert_eq!(found.len(), 1);
        assert!(found[0].text.contains("must not depend on megapipe-apps"));
    }

    #[test]
    fn an_unknown_package_is_found() {
        assert_eq!(pointing_up(&[package("megapipe-extra", &[])]).len(), 1);
    }
}
