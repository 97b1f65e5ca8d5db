//! `slackline stop`: tells all servers of a cluster to end, the counterpart of `slackline status`.

use slackline_net::Role;

use crate::cli::StopArgs;
use crate::failure::Failure;
use crate::observer::visit;

pub(crate) fn stop(args: &StopArgs) -> Result<u8, Failure> {
    visit(&args.clustered, Role::Admin, "were not told to end", async |server, address| {
        server.stop(&args.reason).await.map(|()| format!("the server at {address} ends\n"))
    })
}
