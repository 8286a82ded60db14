package buffer

import (
	"fmt"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// Grant lets the peer of one QP read or write exactly the bytes of one buffer.
// It holds a reference to the buffer from Grant until it ends. Its methods are
// safe for concurrent use.
type Grant struct {
	mu    sync.Mutex
	b     RDMABuffer // zero: ended
	at    *attachment
	key   verbs.MR
	timer *time.Timer
	ended func(GrantEnd)
}

// GrantTerms are what a peer is given, and for how long.
type GrantTerms struct {
	// Access is what the peer may do: AccessRemoteRead, AccessRemoteWrite,
	// AccessRemoteAtomic.
	Access verbs.Access
	// Once ends the grant with the operation: the peer sends its last message
	// about it as SEND_WITH_INV with the grant's key, and the completion of that
	// message, when polled, ends the grant. It needs a connection with
	// Features.SendInv.
	Once bool
	// Lifetime ends the grant after that time, whatever the peer does or does
	// not do. 0: no limit.
	Lifetime time.Duration
	// Ended, if not nil, is told once how the grant ended, except when Revoke
	// did it: on the goroutine that polls, or one of its own when Lifetime is
	// over. It must not block.
	Ended func(GrantEnd)
}

// GrantEnd is how a grant ended by itself.
type GrantEnd struct {
	ByPeer bool  // the peer invalidated the key; else Lifetime was over
	Err    error // it could not be withdrawn: it is still live, call Revoke
}

// GrantFor is Grant with terms. It returns ErrNotSupported, besides, where Once
// is asked for and one of the ends has no send with invalidate.
func (b RDMABuffer) GrantFor(qp *verbs.QP, t GrantTerms) (*Grant, error) {
	if t.Once && !qp.Features().SendInv {
		return nil, fmt.Errorf("%w: a grant for one operation needs send with invalidate on both ends: use Lifetime, and Revoke", ErrNotSupported)
	}
	if t.Lifetime < 0 {
		return nil, fmt.Errorf("%w: a grant for %v", ErrInvalid, t.Lifetime)
	}
	g := new(Grant)
	if err := b.GrantInto(g, qp, t.Access); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = t.Ended
	if t.Once {
		g.key.OnInvalidate(func() { g.end(true) })
	}
	if t.Lifetime > 0 {
		g.timer = time.AfterFunc(t.Lifetime, func() { g.end(false) })
	}
	return g, nil
}

// end ends the grant by itself.
func (g *Grant) end(byPeer bool) {
	g.mu.Lock()
	if g.b.IsZero() { // revoked meanwhile
		g.mu.Unlock()
		return
	}
	ended := g.ended
	err := g.revokeLocked()
	g.mu.Unlock()
	if ended != nil {
		ended(GrantEnd{ByPeer: byPeer, Err: err})
	}
}

// Grant makes a scoped key for exactly b's bytes with the remote rights acc
// (verbs.AccessRemoteRead, verbs.AccessRemoteWrite), usable by the peer of qp
// only. It takes a reference of its own. The arena has to be attached to qp's
// PD. ErrNotSupported where the device has no scoped keys. It must be revoked
// before qp is closed.
func (b RDMABuffer) Grant(qp *verbs.QP, acc verbs.Access) (*Grant, error) {
	g := new(Grant)
	if err := b.GrantInto(g, qp, acc); err != nil {
		return nil, err
	}
	return g, nil
}

// GrantInto is Grant into a Grant of the caller's, zero or revoked, which it
// reuses without allocating.
func (b RDMABuffer) GrantInto(g *Grant, qp *verbs.QP, acc verbs.Access) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.b.IsZero() {
		return fmt.Errorf("%w: the Grant is in use: Revoke it first", ErrInvalid)
	}
	if acc&verbs.AccessRemote == 0 || acc&^verbs.AccessRemote != 0 {
		return fmt.Errorf("%w: a grant of %v: give AccessRemoteRead, AccessRemoteWrite, AccessRemoteAtomic", ErrInvalid, acc)
	}
	pd := qp.PD()
	if !pd.Device().Caps().ScopedKeys {
		return fmt.Errorf("%w: %s has no scoped keys: send the payload in messages", ErrNotSupported, pd.Device().Name())
	}
	a := b.a
	at := a.attachment(pd)
	if at == nil {
		return fmt.Errorf("%w: the arena is not attached to the PD of the QP: Attach it first", ErrInvalid)
	}
	// Detach looks at the count after it has taken the attachment away.
	at.grants.Add(1)
	if a.attachment(pd) != at {
		at.grants.Add(-1)
		return fmt.Errorf("%w: the arena is being detached from the PD of the QP", ErrClosed)
	}
	ref := b.Retain()
	mr := at.regs[b.slot>>a.rgnShift].mr.Load()
	if err := mr.ScopeInto(&g.key, qp, a.offset(b.num())+uint64(b.off()), uint64(b.size()), acc); err != nil {
		ref.Release()
		at.grants.Add(-1)
		return err
	}
	a.grants.Add(1)
	g.b, g.at = ref, at
	return nil
}

// RKey is the key that the peer uses; 0 once revoked.
func (g *Grant) RKey() uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.b.IsZero() {
		return 0
	}
	return g.key.RKey()
}

// Addr is the address of the first byte, as the peer uses it; 0 once revoked.
func (g *Grant) Addr() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.b.IsZero() {
		return 0
	}
	return g.key.Addr()
}

// Len is the number of bytes granted; 0 once revoked.
func (g *Grant) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.Len()
}

// Buffer returns the buffer, zero once revoked. The reference stays the
// grant's.
func (g *Grant) Buffer() RDMABuffer {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b
}

// Revoke withdraws the grant: after it has returned nil no byte lands, and the
// buffer's reference is given back. On error the grant is still live and keeps
// its reference; call Revoke again. Revoking what is revoked returns nil.
func (g *Grant) Revoke() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.b.IsZero() {
		return nil
	}
	return g.revokeLocked()
}

// revokeLocked is Revoke of a live grant. Under Grant.mu.
func (g *Grant) revokeLocked() error {
	if g.timer != nil {
		g.timer.Stop()
	}
	if err := deregister(&g.key); err != nil {
		return err
	}
	g.at.grants.Add(-1)
	g.b.a.grants.Add(-1)
	b := g.b
	g.b, g.at, g.timer, g.ended = RDMABuffer{}, nil, nil, nil
	b.Release()
	return nil
}
