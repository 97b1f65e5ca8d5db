//! The report of a sweep: `report.html`, drawn from `results.json` and the folders of the runs.
//!
//! Read in this order: [`view`] (points in groups), [`runs`] (what runs leave), [`scale`] and [`chart`] (pictures), [`curves`],
//! [`spread`], [`time`] and [`tables`] (the parts), [`page`] (the whole).

pub(crate) mod chart;
pub(crate) mod curves;
pub(crate) mod page;
pub(crate) mod runs;
pub(crate) mod scale;
mod spread;
pub(crate) mod tables;
mod time;
mod view;

use std::path::{Path, PathBuf};

use crate::results::Results;
use crate::state::{LabError, write_whole};

/// Draws `report.html` of the folder of a sweep or a comparison again, and says where it is.
///
/// # Errors
///
/// A folder without results, results that are damaged, or a file that cannot be written. What a run has not left is not drawn.
pub fn report(folder: &Path) -> Result<PathBuf, LabError> {
    if let Some(path) = crate::compare::draw_again(folder)? {
        return Ok(path);
    }
    let results = Results::read(folder)?;
    let page = page::page(&view::View::new(&results, folder));
    let path = folder.join("report.html");
    write_whole(&path, page.as_bytes())?;
    Ok(path)
}
