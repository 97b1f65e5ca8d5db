//! Topologies as texts, and what fits.

use super::*;
use crate::limits::GROUP_COUNT_MAX;

#[test]
fn a_topology_reads_back_as_it_is_written() {
    for topology in fitting(12).into_iter().chain([Topology::Auto]) {
        assert_eq!(topology.to_string().parse(), Ok(topology));
    }
    assert_eq!("torus( 4,2 )".parse(), Ok(Topology::Torus { x: 4, y: 2 }));
}

#[test]
fn what_is_no_topology_is_refused_with_what_there_is() {
    for text in [
        "",
        "rings",
        "Ring",
        "ring()",
        "ring(3)",
        "hierarchical",
        "hierarchical()",
        "hierarchical(0)",
        "hierarchical(-1)",
        "hierarchical(+1)",
        "hierarchical(2, 2)",
        "hierarchical(4294967296)",
        "hierarchical(2",
        "torus",
        "torus(2)",
        "torus(2, 0)",
        "torus(2, 2, 2)",
        "torus(2, 2) ",
        "torus((2, 2))",
        "auto(1)",
    ] {
        let refused = text.parse::<Topology>().unwrap_err().to_string();
        for name in ["ring", "halving-doubling", "doubling", "hierarchical(k)", "torus(x, y)", "auto"] {
            assert!(refused.contains(name), "{text}");
        }
    }
}

#[test]
fn a_misfit_names_the_sizes_that_would_fit() {
    let group = Topology::Hierarchical { group: 4 }.fits(6).unwrap_err().to_string();
    assert_eq!(
        group,
        "hierarchical(4) does not divide 6 workers; these do: hierarchical(1), hierarchical(2), hierarchical(3), hierarchical(6)"
    );
    let torus = Topology::Torus { x: 4, y: 2 }.fits(6).unwrap_err().to_string();
    assert_eq!(
        torus,
        "torus(4, 2) has 8 places for 6 workers; these fit: torus(1, 6), torus(2, 3), torus(3, 2), torus(6, 1)"
    );
    // 65536 * 65536 is 0 in 32 bits.
    let huge = Topology::Torus { x: 65_536, y: 65_536 };
    assert!(huge.fits(1).unwrap_err().to_string().contains("4294967296 places"));
    assert!(Topology::Hierarchical { group: 0 }.fits(6).is_err());
}

#[test]
fn a_group_has_members_and_not_too_many() {
    for topology in [Topology::Ring, Topology::Auto, Topology::Hierarchical { group: 0 }] {
        for members in [0, GROUP_COUNT_MAX + 1, u32::MAX] {
            assert_eq!(topology.fits(members), Err(Misfit::Members { members }));
        }
    }
    for members in 1..=17 {
        assert!(fitting(members).iter().all(|topology| topology.fits(members).is_ok()));
        assert_eq!(Topology::Auto.fits(members), Ok(()));
    }
    assert_eq!(Schedule::new(Topology::Auto, 2).unwrap_err(), Misfit::Undecided);
    assert!(Schedule::new(Topology::Torus { x: 2, y: 2 }, 5).is_err());
}
