// Package verbs is the device core: RDMA objects (device, protection domain,
// memory region, completion queue, queue pair, shared receive queue) over any
// provider that fills in the operations table of package driver.
//
//	Device -> PD -> MR                         memory that may be named in work requests
//	QP.PostSend -> ledger -> driver -> CQ.Poll -> WC
//
// What must hold on every device is done here, once: work is validated before
// the driver is asked; a ledger knows which memory the device may touch, so
// that memory in use is never deregistered; parents outlive their children;
// every posted request is given back exactly once, as a completion or as an
// orphan of a destroyed queue.
//
// # Errors
//
// Operations return *OpError around one of the sentinels (ErrInvalid,
// ErrQueueFull, ErrQPState, ErrNotSupported, ErrClosed, ErrLimit ...) or around
// a typed error with data: *BusyError (children or posted work in the way),
// *StuckError (a destructor of the device does not return), *driver.RejectError.
// Completions that failed become *WCError by WCErr.
//
// # Concurrency and ownership
//
// All methods are safe for concurrent use. Posting and polling never block.
// Closing an object that is closed returns nil. A Close that is refused with
// *BusyError has changed nothing.
package verbs
