//! The messages of etcd's v3 protocol that are needed here, by hand: a handful of them, which are stable, do not need the protocol compiler to
//! be installed wherever this is built. Names and numbers are those of etcd's `rpc.proto` and `kv.proto`.

use prost::{Message, Oneof};

/// The methods.
pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(super) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(super) const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub(super) const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    /// Up to this key, which is not in it; empty for the key alone.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Operation", tags = "1, 2, 3")]
    pub(super) operation: Option<Operation>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Operation {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
}

/// Of the answers to operations only those to ranges are read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub(super) range: Option<RangeResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    /// 0 for equal, the only comparison needed here.
    #[prost(int32, tag = "1")]
    pub(super) result: i32,
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    #[prost(oneof = "Compared", tags = "5, 6, 7")]
    pub(super) compared: Option<Compared>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Compared {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes = "vec", tag = "7")]
    Value(Vec<u8>),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantRequest {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
}

/// A lease with the seconds that it lives from now on: what a grant and a renewal answer. None are left where it is gone.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Lease {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

/// What a renewal and the end of a lease ask with.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseId {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

/// An answer of which nothing is read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Nothing {}

impl Compare {
    /// The key was created in this revision; 0 where there is none.
    pub(super) fn created(key: &str, revision: i64) -> Self {
        Self {
            result: 0,
            target: 1,
            key: key.as_bytes().to_vec(),
            compared: Some(Compared::CreateRevision(revision)),
        }
    }

    /// The key was written last in this revision; 0 where there is none.
    pub(super) fn modified(key: &str, revision: i64) -> Self {
        Self {
            result: 0,
            target: 2,
            key: key.as_bytes().to_vec(),
            compared: Some(Compared::ModRevision(revision)),
        }
    }

    /// The key has this value.
    pub(super) fn value(key: &str, value: &str) -> Self {
        Self {
            result: 0,
            target: 3,
            key: key.as_bytes().to_vec(),
            compared: Some(Compared::Value(value.as_bytes().to_vec())),
        }
    }
}

impl RangeRequest {
    /// One key.
    pub(super) fn key(key: &str) -> Self {
        Self { key: key.as_bytes().to_vec(), ..Self::default() }
    }
}

impl RequestOp {
    pub(super) fn get(key: &str) -> Self {
        Self { operation: Some(Operation::Range(RangeRequest::key(key))) }
    }

    pub(super) fn put(key: &str, value: impl Into<Vec<u8>>, lease: i64) -> Self {
        let put = PutRequest { key: key.as_bytes().to_vec(), value: value.into(), lease };
        Self { operation: Some(Operation::Put(put)) }
    }

    /// Every key from `from` on and before `to`.
    pub(super) fn delete(from: &str, to: Vec<u8>) -> Self {
        let delete = DeleteRangeRequest { key: from.as_bytes().to_vec(), range_end: to };
        Self { operation: Some(Operation::Delete(delete)) }
    }
}

/// The end of the range of all keys with a prefix.
pub(super) fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // Names of rows are plain letters: the last one always has a next.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
