// Package driver is what a provider of RDMA devices fills in: small interfaces
// (the operations table) and the plain-data vocabulary that crosses them.
//
// It stands to package verbs as database/sql/driver stands to database/sql:
// applications use verbs, providers (verbs/iwarp, verbs/ibverbs) implement
// driver. The vocabulary (opcodes, statuses, access flags, WC, Caps) is aliased
// in verbs, so both sides speak of the same types.
//
// # What a provider may assume
//
// The core in package verbs validates before it calls: work requests name live
// memory regions of the right PD, are in bounds, fit the depths and SGE counts
// of their queue, and use operations the device claims in its Caps. It keeps the
// ledger of outstanding work, refuses to close parents with live children, and
// calls Destroy, Dealloc, Deregister and Close of one object once. A provider
// still answers nonsense with an error rather than a crash, because the
// conformance suite posts invalid work through the driver directly to see the
// completion status that hardware would give.
//
// # What a provider must keep
//
//   - Slices given to PostSend and PostRecv, the SGE lists inside them and
//     ConnParam.PrivateData are borrowed until the call returns. The memory that
//     SGEs name is in use until the completion is polled or the QP is destroyed.
//   - Inline data is copied before PostSend returns.
//   - PostSend and PostRecv never block. They return how many work requests were
//     accepted; with n < len(wrs) the error says why request n was not.
//     ErrQueueFull (wrapped) means try again after a completion.
//   - Completions of one queue of one QP appear in posting order as far as
//     Caps.InOrderCompletions says; every accepted work request is completed
//     once, with StatusWRFlushErr when its QP went to ERR first, or is purged by
//     QP.Destroy.
//   - Memory written by the device is visible to whoever polled the completion.
//   - After MR.Deregister returned nil no byte is read from or written to the
//     region, if Caps.DeregBarrier is set.
//   - After QP.Destroy returned nil the device touches nothing on behalf of it.
//
// All methods are safe for concurrent use unless a comment says otherwise.
package driver
