// Package buffer is registered memory that is safe to deregister: an arena cut
// into reference-counted buffers that a device may read and write.
//
//	a, err := buffer.New(buffer.Config{Budget: 256 << 20})
//	err = a.Attach(ctx, pd)             // registers the arena's regions, once
//	b, err := a.Get(ctx, 64<<10, owner) // returns a reference
//	b.RetainPosted()                    // the posted request's reference
//	qp.PostSend(... b.SGE(pd) ...)
//	b.ReleasePosted()                   // on its completion, or as an orphan of QP.Close
//	b.Release()                         // the last reference returns the slot
//
// # Ownership
//
// An Arena owns memory, not a protection domain: each region is registered once
// on every attached PD, so that one buffer can be received on one device and
// sent on another or on a stream. Nothing is registered on the data path, but
// for the scoped keys of grants.
//
// A buffer goes back to the arena with its last reference. Holders have
// references (Get, Retain), and so has posted work (RetainPosted): a buffer can
// not be reused while a device may touch it, even if whoever asked for the
// transfer has given up. The words of the comments: a callee *takes* a
// reference (on a nil error it is now the callee's; on error the caller keeps
// it), *borrows* (until it returns), or *returns a reference* that the caller
// has to release.
//
// Any use of a buffer whose last reference has gone panics, always (a List is
// another matter: see there). With
// Config.Trace also one of several holders releasing twice. With the build tag
// invariants, freed memory is filled with a pattern and checked when the slot
// is used again, which finds writes through slices kept from Bytes.
//
// A peer gets at a buffer by a Grant only: a scoped key, or a type 2 window, for
// its bytes and one connection (see KeyKind). Config.TrustFabric is the
// exception.
//
// # Memory
//
// Regions of at most 1 GiB are cut into chunks as large as the largest size
// class, and a chunk into slots of one class when that class needs one; a chunk
// whose slots are all free can serve any class. Payload starts at a multiple of
// 4 KiB. Slots in use never move.
//
// An arena may begin smaller than its budget (Config.Initial). Then regions are
// added at a low-water mark, or when somebody waits, and given up when they have
// been free for long; what Initial covers stays, and owners that hold for long
// (Lasting) get memory from there. Nobody who gets or releases a buffer maps,
// touches or registers memory, and the arena never goes beyond its budget.
//
// Arena memory is not of the Go heap: neither the garbage collector nor
// GOMEMLIMIT counts it. Set GOMEMLIMIT to the limit of the container less
// Config.Budget less a tenth for the rest of the process; Stats.OffHeap says
// what is mapped now.
//
// # Waiting
//
// Per class, Gets are served first come, first served: while one waits, free
// slots cached by other cores are handed to it first and later Gets queue behind
// it. Waiters of different classes share chunks in order of arrival. Quotas have
// a queue per owner in front of that. Owner Control may also use
// Config.Reserve, so that heartbeats get memory when nobody else does.
//
// # Goroutines and locks
//
// One goroutine per arena advances its coarse clock once a second, from New to
// Close. An arena that can grow has another, the keeper, that adds and gives up
// regions; Close ends it. Attach, Detach, Close and the keeper run
// (de)registrations on a pool that ends with the call, except for a call stuck
// in the device.
//
// Get and Release use caches and take no lock. Lock order: attachSem, then mu,
// and attachSem before what describers lock (Arena.Describe); a Grant's lock before
// mu. While a device is called no lock is held but attachSem, that of the Grant which
// is made or revoked, and a RegCache's semaphores.
//
// # Errors
//
// ErrTooLarge, ErrQuota, ErrExhausted, ErrClosed, ErrNotSupported, ErrInvalid, *FullError (no
// memory: the arena's state, who holds most, the remedy), *LimitError (which
// limit, how much, the remedy; it matches verbs.ErrMemlock or verbs.ErrLimit),
// *LeakError (who still holds what), *BatchError (which regions could not be
// registered or deregistered), and the errors of verbs.
package buffer
