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
// Completions that failed become *WCError by WCErr. What a device that was
// removed, or has failed, can not do any more is ErrDeviceLost: see Device.Lost.
//
// # Ownership
//
// Posting borrows the slices it is given; the memory that SGEs name is the
// device's until the completion that retires the request is polled, or the
// request comes back as an Orphan of Close. Memory given to RegMR is borrowed
// until Deregister returned nil. Closing an object that is closed returns nil. A
// Close that is refused with *BusyError has changed nothing.
//
// # Concurrency
//
// All methods are safe for concurrent use unless they say otherwise. Posting and
// polling never block. Callbacks (OnEvent) run on the device's one event
// goroutine. Destructors of the device run on a goroutine of their own, because
// some block for long; Close waits for them until Config.CloseTimeout.
//
// Locks, in the order in which they are taken:
//
//	Device.closeMu                      one Close of the device at a time
//	QP.sendMu, QP.recvMu, SRQ.recvMu    one post at a time
//	QP.ctl                              other calls into the driver's QP
//	MR.check                            one decision to deregister at a time
//	CQ.mu                               one poll at a time
//	Device.mu                           the tree of objects
//	QP.mu, SRQ.mu                       ledgers
//	CompChannel.mu, eventQueue.mu       leaves
//
// The data path takes sendMu (or recvMu) and QP.mu to post, CQ.mu and QP.mu to
// poll, and nothing that belongs to the whole device.
package verbs
